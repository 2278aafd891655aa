package main

import (
	"bytes"
	"math"
	"math/rand/v2"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// txnOpsMax is etcd's default of --max-txn-ops.
const txnOpsMax = 128

// keySpace is small, so that histories of different operations meet. It holds
// shared prefixes, keys that are prefixes of others, and bytes at the edges.
var keySpace = [][]byte{
	[]byte("a"), []byte("a\x00"), []byte("a\x00\x00"), []byte("aa"), []byte("ab"), []byte("b"), []byte("ba"), []byte("c"),
	[]byte("\x00"), []byte("\x00\x00"), []byte("\x00\x01"), []byte("\xff"), []byte("\xff\xff"), []byte("\xff\xff\xff"), []byte("k\xfe"), []byte("k\xff"), []byte("k\xff\x00"), []byte("l"),
	[]byte("foo"), []byte("foo/"), []byte("foo/0"), []byte("foo/1"), []byte("foo/2"), []byte("foo/3"), []byte("foo/4"), []byte("foo/5"), []byte("foo/6"), []byte("foo/7"), []byte("foo0"), []byte("fop"),
	[]byte("/registry/pods/default/one"), []byte("/registry/pods/default/two"), []byte("/registry/pods/kube/one"), []byte("/registry/pods/kube/two"),
	[]byte("/registry/nodes/n1"), []byte("/registry/nodes/n2"), []byte("/registry/leases/n1"), []byte("/registry0"),
	[]byte("schl\u00fcssel"), []byte("z"),
}

var valueSpace = [][]byte{
	nil, []byte("v"), []byte("w"), []byte("\x00"), []byte("\xff\x00\xff"), []byte("100"), []byte("99"), []byte("a longer value with spaces"),
}

// leaseIDs are asked for by number, so that both servers use the same ones.
var leaseIDs = []int64{1, 2, 3, 4, 5, 6, 7, 1 << 40, math.MaxInt64, -9}

// generator draws operations from a seed and from what the reference server
// answered so far. It knows the current and the compacted revision.
type generator struct {
	rng *rand.Rand
	// revision is the newest revision of the store.
	revision int64
	// compacted is the last compacted revision, 0 when there was none.
	compacted int64
	// settled says that the last compaction was awaited (physical); before that
	// a few answers at exactly the compacted revision depend on timing.
	settled bool
	// ordered says that ranges have some keys in them: whether a user may ask for
	// one without any, etcd leaves to the shape of its tree of permissions.
	ordered bool
	values  int
}

func newGenerator(seed uint64, revision int64) *generator {
	return &generator{rng: rand.New(rand.NewPCG(seed, 0x6d61696e73746179)), revision: revision, settled: true}
}

// chance is true in percent of all cases.
func (g *generator) chance(percent int) bool { return g.rng.IntN(100) < percent }

func pick[T any](g *generator, from []T) T { return from[g.rng.IntN(len(from))] }

func (g *generator) key() []byte { return pick(g, keySpace) }

// keyOrEmpty is sometimes the empty key, which most requests refuse.
func (g *generator) keyOrEmpty() []byte {
	if g.chance(1) {
		return nil
	}
	return g.key()
}

func (g *generator) value() []byte {
	switch {
	case g.chance(40):
		return pick(g, valueSpace)
	case g.chance(2):
		return bytes.Repeat([]byte{byte('A' + g.rng.IntN(26))}, 1+g.rng.IntN(40000))
	default:
		g.values++
		return strconv.AppendInt([]byte("value-"), int64(g.values), 10)
	}
}

// prefixEnd is the end of the range of all keys with a prefix.
func prefixEnd(key []byte) []byte {
	end := bytes.Clone(key)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return []byte{0}
}

// span draws a key and a range end of every form, also empty and reversed ones.
func (g *generator) span() (key, end []byte) {
	key = g.keyOrEmpty()
	switch g.rng.IntN(10) {
	case 0, 1, 2:
		return key, nil
	case 3:
		return key, []byte{0}
	case 4, 5:
		if g.chance(50) && len(key) > 1 {
			key = key[:1+g.rng.IntN(len(key)-1)]
		}
		return key, prefixEnd(key)
	case 6:
		return []byte{0}, []byte{0}
	case 7:
		return key, append(bytes.Clone(key), 0)
	case 8:
		end = key
	default:
		end = g.key()
	}
	if g.ordered && bytes.Compare(end, key) <= 0 {
		return key, nil
	}
	return key, end
}

// anyRevision draws a revision for reads: current, old, compacted, future, negative.
func (g *generator) anyRevision() int64 {
	switch n := g.rng.IntN(100); {
	case n < 55:
		return 0
	case n < 80:
		return g.liveRevision()
	case n < 85:
		return g.compacted
	case n < 89:
		return g.compacted - 1 - g.rng.Int64N(5)
	case n < 93:
		return g.revision + 1 + g.rng.Int64N(3)
	case n < 95:
		return -1 - g.rng.Int64N(3)
	case n < 96:
		return math.MaxInt64
	case n < 97:
		return math.MinInt64
	default:
		return g.revision
	}
}

// liveRevision is between the compacted and the current revision.
func (g *generator) liveRevision() int64 {
	low := max(g.compacted, 1)
	return low + g.rng.Int64N(g.revision-low+1)
}

// filterRevision is for the min and max revision filters of a range.
func (g *generator) filterRevision() int64 {
	switch n := g.rng.IntN(20); {
	case n == 0:
		return -1
	case n == 1:
		return g.revision + 1
	default:
		return max(1, g.revision-g.rng.Int64N(80))
	}
}

func (g *generator) rangeRequest() *pb.RangeRequest {
	key, end := g.span()
	r := &pb.RangeRequest{Key: key, RangeEnd: end, Revision: g.anyRevision()}
	if g.chance(35) {
		r.Limit = int64(g.rng.IntN(12))
	}
	if g.chance(1) {
		r.Limit = pick(g, []int64{-1, math.MaxInt64, math.MaxInt64 - 1, math.MinInt64})
	}
	if g.chance(35) {
		r.SortOrder = pb.RangeRequest_SortOrder(g.rng.IntN(3))
		r.SortTarget = pb.RangeRequest_SortTarget(g.rng.IntN(5))
	}
	if g.chance(2) {
		r.SortOrder = pb.RangeRequest_SortOrder(pick(g, []int32{3, -1, 100}))
	}
	if g.chance(2) {
		r.SortTarget = pb.RangeRequest_SortTarget(pick(g, []int32{5, -1, 100}))
	}
	r.Serializable = g.chance(30)
	r.KeysOnly = g.chance(20)
	r.CountOnly = g.chance(12)
	if g.chance(15) {
		r.MinModRevision = g.filterRevision()
	}
	if g.chance(15) {
		r.MaxModRevision = g.filterRevision()
	}
	if g.chance(10) {
		r.MinCreateRevision = g.filterRevision()
	}
	if g.chance(10) {
		r.MaxCreateRevision = g.filterRevision()
	}
	return r
}

// streamRequest is a range request of the kind RangeStream accepts, most times.
func (g *generator) streamRequest() *pb.RangeRequest {
	r := g.rangeRequest()
	if !g.chance(10) {
		r.SortOrder, r.SortTarget = pb.RangeRequest_NONE, pb.RangeRequest_KEY
		r.MinModRevision, r.MaxModRevision, r.MinCreateRevision, r.MaxCreateRevision = 0, 0, 0, 0
	}
	if r.SortOrder == pb.RangeRequest_NONE && r.SortTarget != pb.RangeRequest_KEY {
		// etcd lets this through and then sorts each piece of ten keys or more for itself, so
		// that keys are lost or sent again and again; only a single key is comparable.
		r.RangeEnd = nil
	}
	return r
}

func (g *generator) leaseID() int64 {
	if g.chance(10) {
		return 4242 // never granted
	}
	return pick(g, leaseIDs)
}

func (g *generator) putRequest() *pb.PutRequest {
	r := &pb.PutRequest{Key: g.keyOrEmpty(), Value: g.value(), PrevKv: g.chance(30)}
	if g.chance(25) {
		r.Lease = g.leaseID()
	}
	if g.chance(8) {
		r.IgnoreValue = true
		if !g.chance(20) {
			r.Value = nil
		}
	}
	if g.chance(8) {
		r.IgnoreLease = true
		if !g.chance(20) {
			r.Lease = 0
		}
	}
	return r
}

func (g *generator) deleteRequest() *pb.DeleteRangeRequest {
	key, end := g.span()
	if bytes.Equal(key, []byte{0}) && bytes.Equal(end, []byte{0}) && !g.chance(15) {
		end = nil // deleting everything is kept rare, so that there is something to read
	}
	return &pb.DeleteRangeRequest{Key: key, RangeEnd: end, PrevKv: g.chance(40)}
}

func (g *generator) compare() *pb.Compare {
	c := &pb.Compare{
		Result: pb.Compare_CompareResult(g.rng.IntN(4)),
		Target: pb.Compare_CompareTarget(g.rng.IntN(5)),
		Key:    g.keyOrEmpty(),
	}
	if g.chance(30) {
		c.Key, c.RangeEnd = g.span()
	}
	if g.chance(2) {
		c.Result = pb.Compare_CompareResult(pick(g, []int32{4, -1, 77}))
	}
	if g.chance(2) {
		c.Target = pb.Compare_CompareTarget(pick(g, []int32{5, -1, 77}))
	}
	kind := int(c.Target)
	if g.chance(4) {
		kind = g.rng.IntN(6) // the union does not fit the target, or is missing
	}
	switch kind {
	case 0:
		c.TargetUnion = &pb.Compare_Version{Version: int64(g.rng.IntN(5))}
	case 1:
		c.TargetUnion = &pb.Compare_CreateRevision{CreateRevision: g.comparedRevision()}
	case 2:
		c.TargetUnion = &pb.Compare_ModRevision{ModRevision: g.comparedRevision()}
	case 3:
		c.TargetUnion = &pb.Compare_Value{Value: g.value()}
	case 4:
		c.TargetUnion = &pb.Compare_Lease{Lease: pick(g, []int64{0, 0, g.leaseID()})}
	}
	return c
}

func (g *generator) comparedRevision() int64 {
	if g.chance(40) {
		return 0
	}
	return max(0, g.revision-g.rng.Int64N(100))
}

func (g *generator) requestOp(depth int, readOnly bool) *pb.RequestOp {
	if g.chance(1) {
		return &pb.RequestOp{}
	}
	if readOnly {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: g.txnRange()}}
	}
	switch n := g.rng.IntN(100); {
	case n < 30:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: g.txnRange()}}
	case n < 65:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: g.txnPut()}}
	case n < 82 || depth >= 3:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: g.deleteRequest()}}
	default:
		return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: g.txnRequest(depth + 1)}}
	}
}

// txnRange and txnPut fail less often than their plain forms, so that most
// transactions get past their checks.
func (g *generator) txnRange() *pb.RangeRequest {
	r := g.rangeRequest()
	if !g.chance(10) {
		r.Revision = pick(g, []int64{0, 0, g.revision, g.liveRevision()})
	}
	return r
}

func (g *generator) txnPut() *pb.PutRequest {
	r := g.putRequest()
	if !g.chance(15) {
		r.Lease, r.IgnoreLease, r.IgnoreValue = 0, false, false
	}
	return r
}

func (g *generator) txnRequest(depth int) *pb.TxnRequest {
	r := &pb.TxnRequest{}
	readOnly := depth == 0 && g.chance(12)
	for range g.rng.IntN(4) {
		r.Compare = append(r.Compare, g.compare())
	}
	for range g.rng.IntN(5) {
		r.Success = append(r.Success, g.requestOp(depth, readOnly))
	}
	for range g.rng.IntN(5) {
		r.Failure = append(r.Failure, g.requestOp(depth, readOnly))
	}
	return r
}

// crowdedTxn has as many operations as allowed, or one more, at one level or
// shared between a level and the one below it.
func (g *generator) crowdedTxn() *pb.TxnRequest {
	extra := g.rng.IntN(2)
	r := &pb.TxnRequest{}
	fill := func(n int) (ops []*pb.RequestOp) {
		for i := range n {
			ops = append(ops, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{
				Key: strconv.AppendInt([]byte("crowd/"), int64(i), 10), Value: g.value()}}})
		}
		return ops
	}
	switch g.rng.IntN(4) {
	case 0:
		r.Success = fill(txnOpsMax + extra)
	case 1:
		r.Failure = fill(txnOpsMax + extra)
	case 2:
		for range txnOpsMax + extra {
			r.Compare = append(r.Compare, &pb.Compare{Key: g.key(), Target: pb.Compare_MOD, Result: pb.Compare_GREATER,
				TargetUnion: &pb.Compare_ModRevision{ModRevision: -1}})
		}
		r.Success = fill(1)
	default:
		above := 1 + g.rng.IntN(60)
		nested := &pb.TxnRequest{Success: fill(txnOpsMax - above + extra)}
		for range above - 1 {
			r.Success = append(r.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{
				RequestRange: &pb.RangeRequest{Key: g.key()}}})
		}
		r.Success = append(r.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: nested}})
	}
	return r
}

// overlappingTxn mixes puts and deletes of few keys over several levels, which
// is where the rule about duplicate keys is decided.
func (g *generator) overlappingTxn() *pb.TxnRequest {
	var build func(depth int) *pb.TxnRequest
	keys := [][]byte{[]byte("a"), []byte("aa"), []byte("b"), []byte("foo/1")}
	op := func(depth int) *pb.RequestOp {
		switch n := g.rng.IntN(10); {
		case n < 4:
			return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: pick(g, keys), Value: g.value()}}}
		case n < 7 || depth >= 3:
			d := &pb.DeleteRangeRequest{Key: pick(g, keys)}
			switch g.rng.IntN(5) {
			case 0:
				d.RangeEnd = []byte{0}
			case 1:
				d.RangeEnd = pick(g, keys)
			case 2:
				d.RangeEnd = prefixEnd(d.Key)
			}
			return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: d}}
		default:
			return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: build(depth + 1)}}
		}
	}
	build = func(depth int) *pb.TxnRequest {
		r := &pb.TxnRequest{}
		if g.chance(50) {
			r.Compare = []*pb.Compare{g.compare()}
		}
		for range 1 + g.rng.IntN(2) {
			r.Success = append(r.Success, op(depth))
		}
		for range g.rng.IntN(3) {
			r.Failure = append(r.Failure, op(depth))
		}
		return r
	}
	return build(0)
}

func (g *generator) compactionRequest() *pb.CompactionRequest {
	r := &pb.CompactionRequest{Physical: g.chance(80)}
	switch n := g.rng.IntN(20); {
	case n == 0:
		r.Revision = 0
	case n == 1:
		r.Revision = g.compacted
	case n == 2:
		r.Revision = g.revision + 1 + g.rng.Int64N(3)
	case n == 3:
		r.Revision = -1
	case n == 4:
		r.Revision = g.revision
	default:
		r.Revision = g.liveRevision()
	}
	return r
}

func (g *generator) hashRevision() int64 {
	switch n := g.rng.IntN(10); {
	case n < 3:
		return 0
	case n == 3:
		return g.revision + 1
	case n == 4:
		return max(0, g.compacted-1-g.rng.Int64N(30))
	case n == 5:
		return -1
	}
	r := g.liveRevision()
	if r == g.compacted && !g.settled {
		return g.revision
	}
	return r
}
