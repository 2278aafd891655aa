"""etcd's own test suites, from the Go module proxy, with Mainstay in the place of etcd: see ../conformance.py."""
