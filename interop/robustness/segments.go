package robustness

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.etcd.io/raft/v3/raftpb"
)

// Kinds of records of Mainstay's log, and the sizes of its headers: crates/log/src/format.rs has the format.
const (
	segmentMagic       = "MNSTSEG\n"
	segmentHeaderBytes = 4096
	recordHeaderBytes  = 32
	kindEntry          = 1
	kindHardState      = 2
	kindStart          = 5
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// isMainstays returns true if the data directory has a log of Mainstay.
func isMainstays(dataDir string) bool {
	_, err := os.Stat(filepath.Join(dataDir, "member", "log"))
	return err == nil
}

// readSegments returns the hard state and the raft entries in the segments of a data directory of Mainstay, in the
// order of writing: an entry replaces all entries before it with the same or a higher index. A member that was
// killed may leave a torn record at the end of the log; anything else that is invalid is an error.
func readSegments(dataDir string) (*raftpb.HardState, []*raftpb.Entry, error) {
	names, err := filepath.Glob(filepath.Join(dataDir, "member", "log", "*.seg"))
	if err != nil {
		return nil, nil, err
	}
	if len(names) == 0 {
		return nil, nil, fmt.Errorf("%s has no segments of a log", dataDir)
	}
	slices.SortFunc(names, strings.Compare)
	log := segmentLog{}
	for _, name := range names {
		if err := log.read(name); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if log.state == nil {
		return nil, nil, fmt.Errorf("%s: no record has a hard state", dataDir)
	}
	return log.state, log.entries, nil
}

type segmentLog struct {
	state   *raftpb.HardState
	entries []*raftpb.Entry
}

func (l *segmentLog) read(name string) error {
	file, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	if len(file) < segmentHeaderBytes || string(file[:8]) != segmentMagic {
		return errors.New("this is no segment of a log")
	}
	if version := binary.LittleEndian.Uint32(file[8:]); version != 2 {
		return fmt.Errorf("the segment has version %d of the format", version)
	}
	secret := binary.LittleEndian.Uint64(file[48:])
	for at := segmentHeaderBytes; at+recordHeaderBytes <= len(file); {
		record := file[at:]
		length := int(binary.LittleEndian.Uint32(record[4:]))
		mark := binary.LittleEndian.Uint16(record[10:])
		if mark != uint16(secret>>32) || length > len(record)-recordHeaderBytes {
			return nil // The end mark, or what the file held before.
		}
		total := recordHeaderBytes + length
		if crc32.Update(uint32(secret)^uint32(at), castagnoli, record[4:total]) != binary.LittleEndian.Uint32(record) {
			return nil // The torn end of a write that a kill cut off.
		}
		term, index := binary.LittleEndian.Uint64(record[16:]), binary.LittleEndian.Uint64(record[24:])
		if err := l.add(record[8], record[9], term, index, record[recordHeaderBytes:total]); err != nil {
			return fmt.Errorf("offset %d: %w", at, err)
		}
		at += (total + 7) &^ 7
	}
	return nil
}

func (l *segmentLog) add(kind, entryType byte, term, index uint64, payload []byte) error {
	switch kind {
	case kindEntry:
		l.entries = append(l.entries, &raftpb.Entry{
			Type: raftpb.EntryType(entryType).Enum(), Term: &term, Index: &index, Data: slices.Clone(payload),
		})
	case kindHardState, kindStart:
		if kind == kindHardState && len(payload) < 8 || kind == kindStart && len(payload) < 24 {
			return errors.New("the record is too short")
		}
		vote, commit := binary.LittleEndian.Uint64(payload), index
		if kind == kindStart {
			term, vote, commit = vote, binary.LittleEndian.Uint64(payload[8:]), binary.LittleEndian.Uint64(payload[16:])
		}
		l.state = &raftpb.HardState{Term: &term, Vote: &vote, Commit: &commit}
	}
	return nil
}
