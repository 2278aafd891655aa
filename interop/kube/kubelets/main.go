// Command kubelets stands for everything that uses a Kubernetes control plane in interop/kube_e2e.py: the kubelets of many
// nodes, as far as the API shows them, a client that writes and reads all the time, and watches whose every event is judged.
//
//	kubelets --kubeconfig FILE --nodes N --listen 127.0.0.1:PORT
//
// It starts no containers: a pod that is bound to a node is reported as running, and one that is to be deleted is deleted. What it
// has seen is served as JSON over HTTP; see [server].
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how kube-apiserver is reached, as an administrator")
	listen := flag.String("listen", "127.0.0.1:0", "where results are served")
	count := flag.Int("nodes", 50, "number of nodes")
	workers := flag.Int("workers", 32, "requests about pods at once")
	rate := flag.Int("rate", 5, "objects per second that the client creates, changes and reads")
	flag.Parse()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	// Each kubelet has a limit of its own, which one process for all of them cannot have.
	config.QPS = -1
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	seen := newFigures()
	kubelets := newKubelets(clientFor(config), *count, *workers, seen)
	writer := newWriter(clientFor(config), *rate, seen)
	serve := &server{figures: seen, kubelets: kubelets, writer: writer, client: clientFor(config)}
	// Watches have a connection of their own: nothing that they tell waits for requests.
	watching := clientFor(config)
	pods := newJudge("pods", seen, kubelets.podSeen)
	configs := newJudge("configmaps", seen, writer.seen)
	serve.judges = []*judge{pods, configs}
	go pods.follow(ctx, allPods(watching))
	go configs.follow(ctx, configMaps(watching, written))
	go kubelets.watchNodes(ctx, watching)
	go kubelets.run(ctx)
	go writer.run(ctx)
	go func() {
		if err := http.ListenAndServe(*listen, serve); err != nil {
			log.Fatal(err)
		}
	}()
	<-ctx.Done()
}

func clientFor(config *rest.Config) *kubernetes.Clientset {
	// Copies have connections of their own.
	client, err := kubernetes.NewForConfig(rest.CopyConfig(config))
	if err != nil {
		log.Fatal(err)
	}
	return client
}

// server answers what interop/kube_e2e.py asks:
//
//	GET  /state     counts of pods and nodes, failed requests by reason, how watches ended, and everything that was wrong
//	GET  /window    latencies since POST /begin, by kind
//	POST /begin     begins a window
//	GET  /pods      all pods as one consistent list has them
//	GET  /written   compares a consistent list with what the client was told; the answer is what is wrong
//	POST /pause     the client stops writing, and answers once nothing is under way; POST /resume
//	POST /restored  the store went back to an older state: what was seen before no longer counts
type server struct {
	figures  *figures
	kubelets *kubelets
	writer   *writer
	judges   []*judge
	client   *kubernetes.Clientset
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var answer any = struct{}{}
	var err error
	switch r.Method + " " + r.URL.Path {
	case "GET /state":
		answer = s.state()
	case "GET /window":
		answer = s.figures.window()
	case "POST /begin":
		s.figures.begin()
	case "GET /pods":
		answer, err = listPods(r.Context(), s.client)
	case "GET /written":
		answer, err = s.writer.verify(r.Context())
	case "POST /pause":
		s.writer.pause()
	case "POST /resume":
		s.writer.resume()
	case "POST /restored":
		for _, one := range s.judges {
			one.forget()
		}
		s.kubelets.forget()
	default:
		http.NotFound(w, r)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		log.Print(err)
	}
}

func (s *server) state() map[string]any {
	answer := s.figures.state()
	answer["pods"] = s.kubelets.counts()
	answer["nodes"] = s.kubelets.registered.Load()
	answer["written"] = s.writer.count()
	live := map[string]int{}
	for _, one := range s.judges {
		live[one.what] = one.live()
	}
	answer["live"] = live
	return answer
}
