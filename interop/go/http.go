package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"
)

// httpRequest is one request to the HTTP side of a client port. A request
// without body is a GET.
type httpRequest struct {
	method string
	path   string
	body   string
	// lines, if not 0, is how many lines of an endless answer are read.
	lines int
	// header is an extra header, "Name: value".
	header string
}

func post(path, body string) httpRequest {
	return httpRequest{method: http.MethodPost, path: path, body: body}
}

func get(path string) httpRequest { return httpRequest{method: http.MethodGet, path: path} }

// httpRequests run in this order against fresh servers, so that revisions agree.
// Keys are base64: Zm9v is foo, YmFy is bar.
var httpRequests = []httpRequest{
	get("/version"), get("/health"), get("/health?serializable=true"), get("/health?exclude=NOSPACE"), get("/health?exclude=nonsense"),
	get("/livez"), get("/readyz"), get("/livez?verbose"), get("/readyz?verbose"), get("/livez/serializable_read"), get("/readyz/data_corruption"),
	get("/readyz/linearizable_read"), get("/readyz/serializable_read?verbose"), get("/readyz/none"), get("/livez?exclude=serializable_read"), get("/livez?allowlist=serializable_read"),
	post("/health", ""), post("/livez", ""), post("/version", ""), get("/"), get("/none"), get("/v2/keys"), get("/v3"), get("/v3/none"), post("/v3/kv/none", "{}"), get("/v3/kv/put"),
	{method: http.MethodHead, path: "/health"}, {method: http.MethodOptions, path: "/v3/kv/put", header: "Origin: http://example.com"},
	{method: http.MethodPut, path: "/v3/kv/put", body: "{}"},
	post("/v3/kv/put", `{"key":"Zm9v","value":"YmFy"}`),
	post("/v3/kv/put", `{"key":"Zm9v","value":"YmF6","prev_kv":true}`),
	post("/v3/kv/put", `{"key":"Zm9v","value":"YmF6","prevKv":true}`),
	{method: http.MethodPost, path: "/v3/kv/put", body: `{"key":"Zm9v","value":"Yg=="}`, header: "Origin: http://example.com"},
	{method: http.MethodPost, path: "/v3/kv/range", body: `{"key":"Zm9v"}`, header: "Accept: text/plain"},
	{method: http.MethodPost, path: "/v3/kv/range", body: `{"key":"Zm9v"}`, header: "Content-Type: text/plain"},
	post("/v3/kv/range", `{"key":"Zm9v"}`), post("/v3/kv/range", `{"key":"AA==","range_end":"AA==","limit":"1"}`), post("/v3/kv/range", `{"key":"AA==","rangeEnd":"AA==","limit":1,"count_only":true}`),
	post("/v3/kv/range", `{"key":"AA==","range_end":"AA==","sort_order":"DESCEND","sort_target":"MOD"}`), post("/v3/kv/range", `{"key":"AA==","range_end":"AA==","sort_order":1,"sort_target":2}`),
	post("/v3/kv/range", `{"key":"AA==","sort_order":"SIDEWAYS"}`), post("/v3/kv/range", `{"key":"AA==","sort_order":9}`),
	post("/v3/kv/range", `{"key":"Zm9v","revision":"2"}`), post("/v3/kv/range", `{"key":"Zm9v","revision":1.5}`), post("/v3/kv/range", `{"key":"Zm9v","revision":99}`),
	post("/v3/kv/range", `{"key":"Zm9v","keys_only":true,"serializable":true}`), post("/v3/kv/range", `{"key":"bm9uZQ=="}`),
	post("/v3/kv/range", ``), post("/v3/kv/range", `{}`), post("/v3/kv/range", `{`), post("/v3/kv/range", `[]`), post("/v3/kv/range", `{"key":"%%%"}`), post("/v3/kv/range", `{"key":"Zm9"}`), post("/v3/kv/range", `{"key":"_-8="}`),
	post("/v3/kv/range", `{"key":"Zm9v","surprise":1}`), post("/v3/kv/range", `{"key":5}`), post("/v3/kv/range", `{"key":null}`), post("/v3/kv/range", `{"key":"Zm9v"} {"key":"YQ=="}`),
	post("/v3/kv/txn", `{"compare":[{"key":"Zm9v","target":"VALUE","result":"EQUAL","value":"Yg=="}],"success":[{"request_put":{"key":"YQ==","value":"MQ=="}},{"requestRange":{"key":"Zm9v"}}],"failure":[]}`),
	post("/v3/kv/txn", `{"compare":[{"key":"Zm9v","target":"VERSION","result":"GREATER","version":"9"}],"failure":[{"request_delete_range":{"key":"YQ==","prev_kv":true}},{"request_txn":{"success":[{"request_put":{"key":"Yg=="}}]}}]}`),
	post("/v3/kv/txn", `{"success":[{"request_put":{"key":"YQ=="}},{"request_put":{"key":"YQ=="}}]}`), post("/v3/kv/txn", `{"success":[{}]}`),
	post("/v3/kv/deleterange", `{"key":"Yg==","prev_kv":true}`), post("/v3/kv/deleterange", `{"key":"Yg=="}`),
	post("/v3/kv/compaction", `{"revision":"3"}`), post("/v3/kv/compaction", `{"revision":3}`), post("/v3/kv/range", `{"key":"Zm9v","revision":"2"}`),
	post("/v3/lease/grant", `{"ID":"77","TTL":"500"}`), post("/v3/lease/grant", `{"ID":77,"TTL":500}`), post("/v3/kv/put", `{"key":"bA==","lease":"77"}`),
	post("/v3/lease/timetolive", `{"ID":"77","keys":true}`), post("/v3/kv/lease/timetolive", `{"ID":"78"}`), post("/v3/lease/leases", `{}`), post("/v3/kv/lease/leases", ``),
	post("/v3/lease/keepalive", `{"ID":"77"}`), post("/v3/lease/keepalive", `{"ID":"78"}`), post("/v3/lease/revoke", `{"ID":"77"}`), post("/v3/kv/lease/revoke", `{"ID":"77"}`),
	post("/v3/cluster/member/list", `{}`), post("/v3/cluster/member/list", `{"linearizable":true}`), post("/v3/cluster/member/remove", `{"ID":"5"}`), post("/v3/cluster/member/promote", `{"ID":"5"}`),
	post("/v3/maintenance/status", `{}`), post("/v3/maintenance/alarm", `{"action":"GET"}`), post("/v3/maintenance/hashkv", `{"revision":"4"}`), post("/v3/maintenance/defragment", `{}`),
	post("/v3/maintenance/transfer-leadership", `{"targetID":"5"}`), post("/v3/maintenance/downgrade", `{"action":"VALIDATE","version":"nonsense"}`), post("/v3/maintenance/downgrade", `{"action":"CANCEL"}`),
	post("/v3/auth/status", `{}`), post("/v3/auth/enable", `{}`), post("/v3/auth/authenticate", `{"name":"a","password":"b"}`), post("/v3/auth/user/add", `{"name":"u","password":"p"}`), post("/v3/auth/user/add", `{"name":"u","password":"p"}`),
	post("/v3/auth/user/get", `{"name":"u"}`), post("/v3/auth/user/list", `{}`), post("/v3/auth/user/changepw", `{"name":"none","password":"p"}`), post("/v3/auth/role/add", `{"name":"r"}`), post("/v3/auth/user/grant", `{"user":"u","role":"r"}`), post("/v3/auth/role/list", `{}`),
	post("/v3/auth/role/grant", `{"name":"r","perm":{"permType":"READWRITE","key":"Zm9v","range_end":"Zm9w"}}`), post("/v3/auth/role/get", `{"role":"r"}`), post("/v3/auth/role/revoke", `{"role":"r","key":"Zm9v"}`),
	post("/v3/auth/user/revoke", `{"name":"u","role":"r"}`), post("/v3/auth/user/delete", `{"name":"u"}`), post("/v3/auth/role/delete", `{"role":"r"}`), post("/v3/auth/disable", `{}`),
	post("/v3/lease/grant", `{"ID":"7001","TTL":"5000"}`), post("/v3/lock/lock", `{"name":"ZG9vcg==","lease":"7001"}`), post("/v3/lock/unlock", `{"key":"ZG9vci8xYjU5"}`),
	post("/v3/election/leader", `{"name":"c2VhdA=="}`), post("/v3/election/campaign", `{"name":"c2VhdA==","lease":"7001","value":"bWU="}`), post("/v3/election/leader", `{"name":"c2VhdA=="}`), post("/v3/election/resign", `{}`), post("/v3/election/proclaim", `{}`),
	{method: http.MethodPost, path: "/v3/election/observe", body: `{"name":"c2VhdA=="}`, lines: 1},
	{method: http.MethodPost, path: "/v3/watch", body: `{"create_request":{"key":"AA==","range_end":"AA==","start_revision":"4","prev_kv":true}}`, lines: 2},
	{method: http.MethodPost, path: "/v3/watch", body: `{"create_request":{"key":"AA==","range_end":"AA==","start_revision":"1"}}`, lines: 2},
	{method: http.MethodPost, path: "/v3/watch", body: `{"createRequest":{"key":"Zm9v","filters":["NOPUT"]}}`, lines: 1},
	post("/v3/lease/revoke", `{"ID":"7001"}`),
}

func runHTTP(args []string) int {
	flags := flag.NewFlagSet("http", flag.ExitOnError)
	reference := flags.String("reference", "", "endpoint of the server that is right by definition (host:port)")
	subject := flags.String("subject", "", "endpoint of the server under test (host:port)")
	show := flags.Int("show", 100, "number of differing requests printed")
	without := &parts{known: []string{"gateway"}}
	flags.Var(without, "without", "parts that the subject lacks on purpose: gateway (all paths below /v3)")
	_ = flags.Parse(args) // ExitOnError
	if *reference == "" || *subject == "" {
		flags.Usage()
		return 2
	}
	t := &tally{show: *show}
	endpoints := [2]string{"http://" + hostPort(*reference), "http://" + hostPort(*subject)}
	documented, subjectIsMainstay := documentedTally{}, isMainstay(metricShapes(endpoints[1]))
	var metrics [2]answer
	for i, r := range httpRequests {
		if without.has("gateway") && (r.path == "/v3" || strings.HasPrefix(r.path, "/v3/")) {
			t.leaveOut()
			continue
		}
		answers := [2]answer{}
		for side, endpoint := range endpoints {
			answers[side] = r.run(endpoint)
			if why, failed := answers[side]["transport"]; failed && i == 0 {
				fmt.Fprintln(os.Stderr, "interop http:", why)
				return 2
			}
		}
		documented.checkRequest(t, r, answers[0], answers[1], subjectIsMainstay)
	}
	for side, endpoint := range endpoints {
		metrics[side] = metricShapes(endpoint)
	}
	// Every metric family is a check of its own, so that the count says how many are missing.
	families := map[string]bool{}
	for family := range metrics[0] {
		families[family] = true
	}
	names := make([]string, 0, len(families))
	for family := range families {
		names = append(names, family)
	}
	sort.Strings(names)
	for _, family := range names {
		documented.checkFamily(t, family, metrics[0], metrics[1], subjectIsMainstay)
	}
	if subjectIsMainstay {
		documented.finish(t)
	}
	return t.finish()
}

func (r httpRequest) run(endpoint string) answer {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, r.method, endpoint+r.path, strings.NewReader(r.body))
	if err != nil {
		return answer{"transport": err.Error()}
	}
	if name, value, ok := strings.Cut(r.header, ": "); ok {
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return answer{"transport": err.Error()}
	}
	defer response.Body.Close()
	out := answer{"status": strconv.Itoa(response.StatusCode)}
	for name, values := range response.Header {
		if name != "Date" && name != "Content-Length" {
			out["header."+name] = strings.Join(values, " | ")
		}
	}
	var body []byte
	if r.lines > 0 {
		lines := bufio.NewReader(response.Body)
		for range r.lines {
			line, err := lines.ReadBytes('\n')
			body = append(body, line...)
			if err != nil {
				out["after_lines"] = "the stream ended"
				break
			}
		}
	} else if body, err = io.ReadAll(response.Body); err != nil {
		out["transport"] = err.Error()
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	for n := 0; ; n++ {
		var value any
		err := decoder.Decode(&value)
		if err == io.EOF {
			break
		}
		if err != nil { // not JSON: the text is compared, its lines in any order
			text := strings.Split(string(body), "\n")
			sort.Strings(text)
			out["body"] = strings.Join(text, "\n")
			break
		}
		path := "body"
		if n > 0 {
			path += "#" + strconv.Itoa(n)
		}
		out.json(path, value)
	}
	return out
}

// json adds a decoded JSON value. Identity, addresses, sizes and raft positions
// are only compared by kind.
func (a answer) json(path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		a[path] = "object"
		for name, inner := range v {
			switch name {
			case "cluster_id", "member_id", "raft_term", "ID", "leader", "raftIndex", "raftAppliedIndex", "raftTerm", "dbSize", "dbSizeInUse", "name", "peerURLs", "clientURLs", "memberID", "targetID":
				a[path+"."+name] = fmt.Sprintf("some %T", inner)
			case "version", "etcdserver":
				text, _ := inner.(string)
				if parts := strings.Split(text, "."); len(parts) == 3 {
					inner = parts[0] + "." + parts[1] + ".x"
				}
				a.json(path+"."+name, inner)
			default:
				a.json(path+"."+name, inner)
			}
		}
	case []any:
		a[path+".len"] = strconv.Itoa(len(v))
		for i, inner := range v {
			a.json(fmt.Sprintf("%s[%d]", path, i), inner)
		}
	case string:
		// Go's protobuf puts a no-break space into its errors in some builds.
		a[path] = strconv.Quote(strings.ReplaceAll(v, "\u00a0", " "))
	default:
		a[path] = fmt.Sprintf("%#v", v)
	}
}

// metricShapes reads /metrics: per family its type, its label names, and for a
// histogram the bounds of its buckets. Families of the language runtime are the
// server's own affair.
func metricShapes(endpoint string) answer {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+"/metrics", nil)
	if err != nil {
		return answer{"transport": err.Error()}
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return answer{"transport": err.Error()}
	}
	defer response.Body.Close()
	kinds, labels, bounds := map[string]string{}, map[string]map[string]bool{}, map[string]string{}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			if !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "promhttp_") {
				kinds[name] = kind
			}
			continue
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, rest, labelled := strings.Cut(line, "{")
		if !labelled {
			name, _, _ = strings.Cut(line, " ")
		}
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, ok := strings.CutSuffix(name, suffix); ok && kinds[base] == "histogram" {
				name = base
			}
		}
		if labels[name] == nil {
			labels[name] = map[string]bool{}
		}
		if labelled {
			set, _, _ := strings.Cut(rest, "} ")
			for _, pair := range strings.Split(set, `",`) {
				label, value, _ := strings.Cut(pair, `="`)
				labels[name][label] = true
				value = strings.TrimSuffix(value, `"`)
				if label == "le" && !strings.Contains(bounds[name]+" ", " "+value+" ") {
					bounds[name] += " " + value
				}
			}
		}
	}
	out := answer{}
	for name, kind := range kinds {
		var set []string
		for label := range labels[name] {
			set = append(set, label)
		}
		sort.Strings(set)
		out[name] = kind + " {" + strings.Join(set, ",") + "}" + bounds[name]
	}
	return out
}
