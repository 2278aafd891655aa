// Checks an image in the OCI image layout by the library that clients of registries use.
//
//	go run . --folder FOLDER --architectures amd64,arm64
//
// It also has to find mistakes that are planted in copies. Ends with "N passed, M failed".
package main

import (
	"archive/tar"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// tally counts checks.
type tally struct{ passed, failed int }

func (t *tally) check(what string, err error) {
	if err == nil {
		t.passed++
		return
	}
	t.failed++
	fmt.Printf("FAILED %s: %v\n", what, err)
}

// refused is a check that something is found wrong.
func (t *tally) refused(what string, err error) {
	if err != nil {
		t.passed++
		return
	}
	t.failed++
	fmt.Printf("FAILED %s: nothing was found\n", what)
}

func main() {
	folder := flag.String("folder", "", "the image")
	architectures := flag.String("architectures", "", "those that it has to have, separated by commas")
	flag.Parse()
	if *folder == "" || *architectures == "" {
		fmt.Fprintln(os.Stderr, "oci: --folder and --architectures are needed")
		os.Exit(2)
	}
	t := &tally{}
	checkLayout(t, *folder, strings.Split(*architectures, ","))
	fmt.Printf("%d passed, %d failed\n", t.passed, t.failed)
	if t.failed > 0 {
		os.Exit(1)
	}
}

// checkLayout checks digests and sizes of all blobs, then that every architecture has what the Dockerfile's image has.
func checkLayout(t *tally, folder string, architectures []string) {
	t.check("the image's layout", judgeLayout(folder, architectures))
	for what, plant := range map[string]func(string) error{
		"a blob that was changed": func(copied string) error { return appendTo(firstBlob(copied)) },
		"a blob that is missing":  func(copied string) error { return os.Remove(firstBlob(copied)) },
		"another version of the layout": func(copied string) error {
			return os.WriteFile(filepath.Join(copied, "oci-layout"), []byte(`{"imageLayoutVersion":"9.0.0"}`), 0o644)
		},
	} {
		copied, err := os.MkdirTemp("", "oci-")
		if err == nil {
			defer os.RemoveAll(copied)
			err = os.CopyFS(copied, os.DirFS(folder))
		}
		if err == nil {
			err = plant(copied)
		}
		if err != nil {
			t.check("planted in the image: "+what, err)
			continue
		}
		t.refused("planted in the image: "+what, judgeLayout(copied, architectures))
	}
	t.refused("an architecture that is not there", judgeLayout(folder, append(architectures, "riscv64")))
}

func firstBlob(folder string) string {
	found, err := filepath.Glob(filepath.Join(folder, "blobs/sha256/*"))
	if err != nil || len(found) == 0 {
		return folder
	}
	return found[0]
}

func appendTo(path string) error {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteString(" ")
	return err
}

func judgeLayout(folder string, architectures []string) error {
	marker, err := os.ReadFile(filepath.Join(folder, "oci-layout"))
	if err != nil || string(marker) != `{"imageLayoutVersion":"1.0.0"}` {
		return fmt.Errorf("oci-layout: %s, %v", marker, err)
	}
	top, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		return err
	}
	if err := validate.Index(top); err != nil {
		return err
	}
	manifest, err := top.IndexManifest()
	if err != nil {
		return err
	}
	if len(manifest.Manifests) != 1 {
		return fmt.Errorf("%d images in the layout", len(manifest.Manifests))
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		return err
	}
	images, err := index.IndexManifest()
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, one := range images.Manifests {
		image, err := index.Image(one.Digest)
		if err != nil {
			return err
		}
		if err := judgeImage(image, one.Platform); err != nil {
			return fmt.Errorf("%s: %w", one.Platform, err)
		}
		found[one.Platform.Architecture] = true
	}
	for _, architecture := range architectures {
		if !found[architecture] {
			return fmt.Errorf("there is no image for %s", architecture)
		}
	}
	return nil
}

func judgeImage(image v1.Image, platform *v1.Platform) error {
	file, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config := file.Config
	if platform == nil || file.OS != platform.OS || file.Architecture != platform.Architecture {
		return fmt.Errorf("it says %s/%s", file.OS, file.Architecture)
	}
	if config.User != "65532:65532" || config.WorkingDir != "/var/lib/etcd" || len(config.Cmd) != 1 || config.Cmd[0] != "/usr/local/bin/etcd" {
		return fmt.Errorf("its settings are %+v", config)
	}
	flat := mutate.Extract(image)
	defer flat.Close()
	missing := map[string]byte{
		"usr/local/bin/mainstay": tar.TypeReg, "usr/local/bin/etcd": tar.TypeSymlink, "usr/local/bin/etcdctl": tar.TypeSymlink,
		"usr/local/bin/etcdutl": tar.TypeSymlink, "etc/passwd": tar.TypeReg, "var/lib/etcd": tar.TypeDir, "tmp": tar.TypeDir,
		"usr/share/doc/mainstay/LICENSE": tar.TypeReg, "usr/share/doc/mainstay/third-party-notices.txt": tar.TypeReg,
	}
	reader := tar.NewReader(flat)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(header.Name, "/")
		if kind, wanted := missing[name]; wanted && kind == header.Typeflag {
			delete(missing, name)
		}
		if name == "var/lib/etcd" && (header.Uid != 65532 || header.Gid != 65532) {
			return fmt.Errorf("its data belongs to %d:%d", header.Uid, header.Gid)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("it lacks %v", missing)
	}
	return nil
}
