// Command interop runs etcd's own Go client, and the raw gRPC API, against any
// server that speaks the etcd v3 protocol.
//
//	interop concurrency --endpoint HOST:PORT
//	interop compare --reference HOST:PORT --subject HOST:PORT [--ops N] [--seed S] [--without auth,locks]
//	interop http --reference HOST:PORT --subject HOST:PORT [--without gateway]
//	interop cluster COMMAND --server PATH [...]
//	interop certificates --dir DIR [--users NAME,...] [--hosts HOST,...]
//	interop handshakes --endpoint HOST:PORT --cacert FILE [--connections N] [...]
//	interop drain --endpoint HOST:PORT --mainstay PATH
//
// The last line of a check's output is always "N passed, M failed". The exit code is 0
// when nothing failed, 1 when something did, 2 when the run was not possible.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	switch os.Args[1] {
	case "concurrency":
		os.Exit(runConcurrency(os.Args[2:]))
	case "compare":
		os.Exit(runCompare(os.Args[2:]))
	case "http":
		os.Exit(runHTTP(os.Args[2:]))
	case "cluster":
		os.Exit(runCluster(os.Args[2:]))
	case "contend":
		// A process of `cluster locks`.
		os.Exit(runContend(os.Args[2:]))
	case "certificates":
		os.Exit(runCertificates(os.Args[2:]))
	case "handshakes":
		os.Exit(runHandshakes(os.Args[2:]))
	case "drain":
		os.Exit(runDrain(os.Args[2:]))
	default:
		usage()
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: interop concurrency --endpoint E")
	fmt.Fprintln(os.Stderr, "       interop compare --reference E1 --subject E2 [--ops N] [--seed S] [--without auth,locks]")
	fmt.Fprintln(os.Stderr, "       interop http --reference E1 --subject E2 [--without gateway]")
	fmt.Fprintln(os.Stderr, "       interop cluster history|history-check|history-selftest|failover|members|rolling|catchup|locks|health|soak --help")
	fmt.Fprintln(os.Stderr, "       interop certificates --dir DIR [--users NAME,...] [--hosts HOST,...]")
	fmt.Fprintln(os.Stderr, "       interop handshakes --endpoint E --cacert FILE [--connections N] [--resume]")
	fmt.Fprintln(os.Stderr, "       interop drain --endpoint E --mainstay PROGRAM [--clients N] [--rounds N]")
	os.Exit(2)
}
