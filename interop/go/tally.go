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
	// leftOut counts what --without left out.
	leftOut int
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

// leaveOut counts one check that is not made.
func (t *tally) leaveOut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leftOut++
}

// finish prints the closing line and returns the exit code.
func (t *tally) finish() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leftOut > 0 {
		fmt.Printf("%d left out\n", t.leftOut)
	}
	fmt.Printf("%d passed, %d failed\n", t.passed, t.failed)
	if t.failed > 0 || t.passed == 0 {
		return 1
	}
	return 0
}
