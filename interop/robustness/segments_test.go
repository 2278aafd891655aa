package robustness

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"go.etcd.io/raft/v3/raftpb"
)

// The segment that the log's own tests keep for ever is read here, too; a changed byte ends the log before it.
func TestSegments(t *testing.T) {
	segment := golden(t, "../../crates/log/tests/it/golden/segment_2.hex")
	state, entries := readOne(t, segment)
	var found []string
	for _, entry := range entries {
		found = append(found, fmt.Sprintf("%v %d/%d %q", entry.GetType(), entry.GetTerm(), entry.GetIndex(), entry.Data))
	}
	require.Equal(t, []string{
		`EntryConfChange 2/1 "first"`, `EntryConfChange 2/2 "second entry"`, `EntryConfChange 5/101 ""`,
	}, found)
	require.Equal(t, []uint64{2, 0x3e, 1}, []uint64{state.GetTerm(), state.GetVote(), state.GetCommit()})

	changed := bytes.Clone(segment)
	changed[bytes.Index(segment, []byte("first"))]++
	_, entries = readOne(t, changed)
	require.Empty(t, entries)
}

func readOne(t *testing.T, segment []byte) (*raftpb.HardState, []*raftpb.Entry) {
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "member", "log"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "member", "log", "00000000000000c1.seg"), segment, 0o600))
	require.True(t, isMainstays(dir))
	state, entries, err := readSegments(dir)
	require.NoError(t, err)
	return state, entries
}

// golden reads lines of `offset: bytes`; what no line has is zeros. The last line is the length.
func golden(t *testing.T, name string) []byte {
	text, err := os.Open(name)
	require.NoError(t, err)
	defer text.Close()
	dump := make([]byte, 1<<20)
	for lines := bufio.NewScanner(text); lines.Scan(); {
		if length, found := strings.CutPrefix(lines.Text(), "length "); found {
			n, err := strconv.Atoi(length)
			require.NoError(t, err)
			return dump[:n]
		}
		offset, line, _ := strings.Cut(lines.Text(), ": ")
		at, err := strconv.ParseInt(offset, 16, 32)
		require.NoError(t, err)
		for i, digits := range strings.Fields(line) {
			value, err := strconv.ParseUint(digits, 16, 8)
			require.NoError(t, err)
			dump[int(at)+i] = byte(value)
		}
	}
	t.Fatalf("%s has no length", name)
	return nil
}
