package main

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

func sorted(request *pb.RangeRequest, more bool, kvs ...*mvccpb.KeyValue) answer {
	response := &pb.RangeResponse{Kvs: kvs, More: more, Header: &pb.ResponseHeader{ClusterId: uint64(len(kvs)), Revision: 9}}
	looseTies(request, response)
	out := answer{}
	out.flatten("", response)
	return out
}

func kv(key string, version int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(key), Version: version}
}

func TestTiesMayComeInAnyOrder(t *testing.T) {
	r := &pb.RangeRequest{SortTarget: pb.RangeRequest_VERSION, SortOrder: pb.RangeRequest_ASCEND}
	if d := differences(sorted(r, false, kv("a", 1), kv("b", 1), kv("c", 2)), sorted(r, false, kv("b", 1), kv("a", 1), kv("c", 2)), nil); len(d) != 0 {
		t.Errorf("ties in another order differ: %v", d)
	}
	if d := differences(sorted(r, false, kv("a", 1), kv("c", 2)), sorted(r, false, kv("c", 2), kv("a", 1)), nil); len(d) == 0 {
		t.Error("a wrong order was not seen")
	}
	if d := differences(sorted(r, false, kv("a", 1), kv("b", 1)), sorted(r, false, kv("a", 1), kv("x", 1)), nil); len(d) == 0 {
		t.Error("another key in a tie was not seen")
	}
	if d := differences(sorted(r, true, kv("a", 1), kv("b", 2)), sorted(r, true, kv("a", 1), kv("x", 2)), nil); len(d) != 0 {
		t.Errorf("which key of a cut tie is kept differs: %v", d)
	}
	if d := differences(sorted(r, true, kv("a", 1), kv("b", 2)), sorted(r, true, kv("a", 1), kv("b", 3)), nil); len(d) == 0 {
		t.Error("another version at the cut was not seen")
	}
}

func TestKeyOrderIsExact(t *testing.T) {
	r := &pb.RangeRequest{SortTarget: pb.RangeRequest_KEY, SortOrder: pb.RangeRequest_DESCEND}
	if d := differences(sorted(r, false, kv("b", 1), kv("a", 1)), sorted(r, false, kv("a", 1), kv("b", 1)), nil); len(d) == 0 {
		t.Error("a wrong order of keys was not seen")
	}
}

func TestDifferences(t *testing.T) {
	slack := map[string]int64{"TTL": 3}
	for _, c := range []struct {
		reference, subject answer
		want               int
	}{
		{answer{"TTL": "60"}, answer{"TTL": "58"}, 0},
		{answer{"TTL": "60"}, answer{"TTL": "56"}, 1},
		{answer{"TTL": "1"}, answer{"TTL": "-1"}, 1},
		{answer{"TTL": "60"}, answer{}, 1},
		{answer{}, answer{"kvs[0].lease": "7"}, 1},
		{answer{"error.text": "a"}, answer{"error.text": "b", "error.code": "c"}, 2},
	} {
		if d := differences(c.reference, c.subject, slack); len(d) != c.want {
			t.Errorf("%v and %v: want %d differences, got %v", c.reference, c.subject, c.want, d)
		}
	}
}

func TestHeaderIdentityIsLeftOut(t *testing.T) {
	flat := func(h *pb.ResponseHeader) answer {
		out := answer{}
		out.flatten("", &pb.PutResponse{Header: h})
		return out
	}
	one := flat(&pb.ResponseHeader{ClusterId: 1, MemberId: 2, RaftTerm: 3, Revision: 4})
	if d := differences(one, flat(&pb.ResponseHeader{ClusterId: 5, MemberId: 6, RaftTerm: 7, Revision: 4}), nil); len(d) != 0 {
		t.Errorf("identity differs: %v", d)
	}
	if d := differences(one, flat(&pb.ResponseHeader{Revision: 5}), nil); len(d) != 1 {
		t.Errorf("another revision: %v", d)
	}
	if d := differences(one, flat(nil), nil); len(d) == 0 {
		t.Error("a missing header was not seen")
	}
}

func TestSameSeedGivesSameOperations(t *testing.T) {
	a, b, c := newGenerator(7, 1), newGenerator(7, 1), newGenerator(8, 1)
	differs := false
	for range 300 {
		x, y, z := a.next(), b.next(), c.next()
		// The text of a message is not stable, but its words are.
		if x.text != y.text {
			t.Fatalf("one seed gave %q and %q", x.text, y.text)
		}
		differs = differs || x.text != z.text
	}
	if !differs {
		t.Error("two seeds gave the same operations")
	}
}
