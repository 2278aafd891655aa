package cluster

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// feederField is the number of the field of a Status answer in which Mainstay names the node that feeds an observer. etcd has no
// such field, so its client library keeps it among those that it does not know.
const feederField = 1004

// Feeder waits until an observer is fed, and is the node that feeds it.
func (m *Member) Feeder(ctx context.Context) (*Member, error) {
	for {
		if s, err := m.Status(ctx); err == nil {
			id := varint(s.ProtoReflect().GetUnknown(), feederField)
			for _, other := range m.cluster.Nodes() {
				if id == 0 || other == m || !other.Running() || other.Paused() {
					continue
				}
				if of, err := other.Status(ctx); err == nil && of.Header.MemberId == id {
					return other, nil
				}
			}
		}
		if !pause(ctx, 50*time.Millisecond) {
			return nil, fmt.Errorf("observer %s is not fed in time", m.Name)
		}
	}
}

// varint is the last value of a field among encoded ones, or 0.
func varint(encoded []byte, field protowire.Number) uint64 {
	var found uint64
	for len(encoded) > 0 {
		number, kind, size := protowire.ConsumeTag(encoded)
		if size < 0 {
			return 0
		}
		encoded = encoded[size:]
		if number == field && kind == protowire.VarintType {
			found, size = protowire.ConsumeVarint(encoded)
		} else {
			size = protowire.ConsumeFieldValue(number, kind, encoded)
		}
		if size < 0 {
			return 0
		}
		encoded = encoded[size:]
	}
	return found
}
