package main

import (
	"fmt"
	"sync"
)

// tally counts checks and prints the ones that fail. It is safe for use by
// several goroutines.
type tally struct {
	mu     sync.Mutex
	passed int
	failed int
	// show is how many failures are printed in full; the rest are only counted.
	show int
}

// check counts one check. The message says what was expected and what came.
func (t *tally) check(ok bool, format string, args ...any) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ok {
		t.passed++
		return true
	}
	t.failed++
	if t.failed <= t.show {
		fmt.Printf("FAIL "+format+"\n", args...)
	}
	return false
}

// finish prints the closing line and returns the exit code.
func (t *tally) finish() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Printf("%d passed, %d failed\n", t.passed, t.failed)
	if t.failed > 0 || t.passed == 0 {
		return 1
	}
	return 0
}
