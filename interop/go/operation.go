package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math"
	"sort"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

const callDeadline = 20 * time.Second

// operation is one thing asked of both servers.
type operation struct {
	text string
	run  func(ctx context.Context, s *server) answer
	// slack lists answer fields that depend on the clock.
	slack map[string]int64
	// learn tells the generator about a reference answer beyond its revision.
	learn func(g *generator, a answer)
	// awaitsWatches says that watches must have delivered everything first.
	awaitsWatches bool
}

// describe prints a request on one line, with long values cut.
func describe(name string, m proto.Message) string {
	text := prototext.MarshalOptions{}.Format(m)
	if len(text) > 1500 {
		text = text[:1500] + "..."
	}
	return name + " {" + strings.Join(strings.Fields(text), " ") + "}"
}

// call makes an operation of a unary RPC. The request is copied for every call;
// soften may remove from the response what two servers may answer differently.
func call[Q, R proto.Message](name string, request Q, rpc func(*server) func(context.Context, Q, ...grpc.CallOption) (R, error), soften func(*server, R)) operation {
	return operation{
		text: describe(name, request),
		run: func(ctx context.Context, s *server) answer {
			ctx, cancel := context.WithTimeout(ctx, callDeadline)
			defer cancel()
			response, err := rpc(s)(ctx, proto.Clone(request).(Q))
			if err != nil {
				return failure(err)
			}
			if soften != nil {
				soften(s, response)
			}
			out := answer{}
			out.flatten("", response)
			return out
		},
	}
}

func (g *generator) next() operation {
	switch n := g.rng.IntN(1000); {
	case n < 260:
		return opPut(g.putRequest())
	case n < 460:
		return opRange(g.rangeRequest())
	case n < 530:
		return opRangeStream(g.streamRequest())
	case n < 590:
		return opDelete(g.deleteRequest())
	case n < 730:
		return opTxn(g.txnRequest(0))
	case n < 755:
		return opTxn(g.overlappingTxn())
	case n < 760:
		return opTxn(g.crowdedTxn())
	case n < 780:
		return opCompact(g.compactionRequest())
	case n < 860:
		p := g.watchPlan()
		texts := make([]string, len(p.creates))
		for i, c := range p.creates {
			texts[i] = describe("", c)
		}
		return operation{text: "Watch" + strings.Join(texts, ""), run: p.run}
	case n < 880:
		ttl := 600 + g.rng.Int64N(100000)
		if g.chance(10) {
			ttl = pick(g, []int64{9_000_000_000, 9_000_000_001, math.MaxInt64})
		}
		return opLeaseGrant(&pb.LeaseGrantRequest{ID: pick(g, leaseIDs), TTL: ttl})
	case n < 886:
		return opShortLease(pick(g, []int64{-5, 0, 1, 2}))
	case n < 890:
		return opAutomaticLease()
	case n < 898:
		return opLeaseRevoke(g.leaseID())
	case n < 915:
		return opLeaseTimeToLive(&pb.LeaseTimeToLiveRequest{ID: g.leaseID(), Keys: g.chance(60)})
	case n < 925:
		return opLeases()
	case n < 935:
		ids := []int64{g.leaseID(), g.leaseID(), g.leaseID()}
		return opKeepAlive(ids[:1+g.rng.IntN(3)])
	case n < 975:
		return opHashKV(g.hashRevision())
	case n < 980:
		return opStatus()
	case n < 984:
		return opMembers(g.chance(50))
	case n < 988:
		return opAlarm(&pb.AlarmRequest{Action: pb.AlarmRequest_GET, Alarm: pb.AlarmType(g.rng.IntN(3))})
	case n < 990:
		return opAlarmRound(pick(g, []pb.AlarmType{pb.AlarmType_NOSPACE, pb.AlarmType_CORRUPT}), g.key())
	case n < 992:
		return opTooLarge(1<<20+g.rng.IntN(1<<20), g.key())
	case n < 993:
		return opDefragment()
	default:
		return opSnapshot()
	}
}

func opPut(r *pb.PutRequest) operation {
	return call("Put", r, func(s *server) func(context.Context, *pb.PutRequest, ...grpc.CallOption) (*pb.PutResponse, error) {
		return s.kv.Put
	}, nil)
}

func opRange(r *pb.RangeRequest) operation {
	return call("Range", r, func(s *server) func(context.Context, *pb.RangeRequest, ...grpc.CallOption) (*pb.RangeResponse, error) {
		return s.kv.Range
	}, func(_ *server, response *pb.RangeResponse) { looseTies(r, response) })
}

// opRangeStream joins the chunks, whose sizes are the server's choice, and
// checks that only the last one carries the header, the count and "more".
func opRangeStream(r *pb.RangeRequest) operation {
	return operation{text: describe("RangeStream", r), run: func(ctx context.Context, s *server) answer {
		ctx, cancel := context.WithTimeout(ctx, callDeadline)
		defer cancel()
		stream, err := s.kv.RangeStream(ctx, proto.Clone(r).(*pb.RangeRequest))
		if err != nil {
			return failure(err)
		}
		out, whole, ended := answer{}, &pb.RangeResponse{}, false
		for {
			chunk, err := stream.Recv()
			if err == io.EOF {
				break
			}
			if err != nil {
				return failure(err)
			}
			part := chunk.GetRangeResponse()
			if ended {
				out["chunk_after_the_last"] = "true"
			}
			ended = part.GetHeader() != nil
			if !ended && (part.GetMore() || part.GetCount() != 0) {
				out["count_or_more_before_the_last_chunk"] = "true"
			}
			proto.Merge(whole, part)
		}
		out["header_in_last_chunk"] = strconv.FormatBool(ended)
		out.flatten("", whole)
		return out
	}}
}

func opDelete(r *pb.DeleteRangeRequest) operation {
	return call("DeleteRange", r, func(s *server) func(context.Context, *pb.DeleteRangeRequest, ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
		return s.kv.DeleteRange
	}, nil)
}

func opTxn(r *pb.TxnRequest) operation {
	return call("Txn", r, func(s *server) func(context.Context, *pb.TxnRequest, ...grpc.CallOption) (*pb.TxnResponse, error) {
		return s.kv.Txn
	}, func(_ *server, response *pb.TxnResponse) { looseTxnTies(r, response) })
}

func opCompact(r *pb.CompactionRequest) operation {
	op := call("Compact", r, func(s *server) func(context.Context, *pb.CompactionRequest, ...grpc.CallOption) (*pb.CompactionResponse, error) {
		return s.kv.Compact
	}, nil)
	op.awaitsWatches = true
	op.learn = func(g *generator, a answer) {
		if _, failed := a["error.code"]; !failed {
			g.compacted, g.settled = r.Revision, r.Physical
		}
	}
	return op
}

func opLeaseGrant(r *pb.LeaseGrantRequest) operation {
	return call("LeaseGrant", r, func(s *server) func(context.Context, *pb.LeaseGrantRequest, ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
		return s.lease.LeaseGrant
	}, nil)
}

// opShortLease grants a lease below the minimum and revokes it at once, before
// it can expire at a moment that is the server's own.
func opShortLease(ttl int64) operation {
	grant := opLeaseGrant(&pb.LeaseGrantRequest{ID: 31337, TTL: ttl})
	revoke := opLeaseRevoke(31337)
	return operation{text: grant.text + " then " + revoke.text, run: func(ctx context.Context, s *server) answer {
		out := answer{}
		out.merge("grant", grant.run(ctx, s))
		out.merge("revoke", revoke.run(ctx, s))
		return out
	}}
}

// opAutomaticLease lets the server choose the id, which only must be positive.
func opAutomaticLease() operation {
	return operation{text: "LeaseGrant with a server-chosen id, then LeaseRevoke", run: func(ctx context.Context, s *server) answer {
		r, err := s.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: 1000})
		if err != nil {
			return failure(err)
		}
		out := answer{"id_positive": strconv.FormatBool(r.ID > 0)}
		id := r.ID
		r.ID = 0
		out.flatten("grant", r)
		out.merge("revoke", opLeaseRevoke(id).run(ctx, s))
		return out
	}}
}

func opLeaseRevoke(id int64) operation {
	return call("LeaseRevoke", &pb.LeaseRevokeRequest{ID: id}, func(s *server) func(context.Context, *pb.LeaseRevokeRequest, ...grpc.CallOption) (*pb.LeaseRevokeResponse, error) {
		return s.lease.LeaseRevoke
	}, nil)
}

func opLeaseTimeToLive(r *pb.LeaseTimeToLiveRequest) operation {
	op := call("LeaseTimeToLive", r, func(s *server) func(context.Context, *pb.LeaseTimeToLiveRequest, ...grpc.CallOption) (*pb.LeaseTimeToLiveResponse, error) {
		return s.lease.LeaseTimeToLive
	}, func(_ *server, response *pb.LeaseTimeToLiveResponse) {
		sort.Slice(response.Keys, func(i, j int) bool { return bytes.Compare(response.Keys[i], response.Keys[j]) < 0 })
	})
	op.slack = map[string]int64{"TTL": 3}
	return op
}

func opLeases() operation {
	return call("LeaseLeases", &pb.LeaseLeasesRequest{}, func(s *server) func(context.Context, *pb.LeaseLeasesRequest, ...grpc.CallOption) (*pb.LeaseLeasesResponse, error) {
		return s.lease.LeaseLeases
	}, func(_ *server, response *pb.LeaseLeasesResponse) {
		sort.Slice(response.Leases, func(i, j int) bool { return response.Leases[i].ID < response.Leases[j].ID })
	})
}

func opKeepAlive(ids []int64) operation {
	return operation{text: fmt.Sprint("LeaseKeepAlive ", ids), run: func(ctx context.Context, s *server) answer {
		ctx, cancel := context.WithTimeout(ctx, callDeadline)
		defer cancel()
		stream, err := s.lease.LeaseKeepAlive(ctx)
		if err != nil {
			return failure(err)
		}
		out := answer{}
		for i, id := range ids {
			if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: id}); err != nil {
				return failure(err)
			}
			r, err := stream.Recv()
			if err != nil {
				return failure(err)
			}
			out.flatten(fmt.Sprintf("response[%d]", i), r)
		}
		if err := stream.CloseSend(); err != nil {
			return failure(err)
		}
		if _, err := stream.Recv(); err != io.EOF {
			out.merge("end", failure(err))
		}
		return out
	}}
}

func opHashKV(revision int64) operation {
	return call("HashKV", &pb.HashKVRequest{Revision: revision}, func(s *server) func(context.Context, *pb.HashKVRequest, ...grpc.CallOption) (*pb.HashKVResponse, error) {
		return s.maint.HashKV
	}, nil)
}

// opStatus keeps the fields that two healthy single members must share.
func opStatus() operation {
	return call("Status", &pb.StatusRequest{}, func(s *server) func(context.Context, *pb.StatusRequest, ...grpc.CallOption) (*pb.StatusResponse, error) {
		return s.maint.Status
	}, func(s *server, r *pb.StatusResponse) {
		isLeader := r.Leader == s.memberID
		r.Leader = 0
		if isLeader {
			r.Leader = 1
		}
		for i, text := range r.Errors {
			// etcd prints an alarm with Go's text format, whose spacing is unstable.
			text = strings.ReplaceAll(text, strconv.FormatUint(s.memberID, 10), "itself")
			r.Errors[i] = strings.Join(strings.Fields(text), " ")
		}
		if parts := strings.Split(r.Version, "."); len(parts) == 3 {
			r.Version = parts[0] + "." + parts[1] // the patch level is the server's own
		}
		sane := r.RaftIndex > 0 && r.RaftAppliedIndex > 0 && r.RaftAppliedIndex <= r.RaftIndex && r.RaftTerm > 0
		r.RaftIndex, r.RaftAppliedIndex, r.RaftTerm = 0, 0, 0
		if sane {
			r.RaftIndex = 1
		}
		sane = r.DbSize > 0 && r.DbSizeInUse > 0 && r.DbSizeInUse <= r.DbSize
		r.DbSize, r.DbSizeInUse = 0, 0
		if sane {
			r.DbSize = 1
		}
	})
}

// opMembers compares the shape of the list, not addresses and ids.
func opMembers(linearizable bool) operation {
	return call("MemberList", &pb.MemberListRequest{Linearizable: linearizable}, func(s *server) func(context.Context, *pb.MemberListRequest, ...grpc.CallOption) (*pb.MemberListResponse, error) {
		return s.cluster.MemberList
	}, func(s *server, r *pb.MemberListResponse) {
		for _, m := range r.Members {
			if m.ID == s.memberID {
				m.ID = 1
			}
			if m.Name != "" {
				m.Name = "named"
			}
			for i := range m.PeerURLs {
				m.PeerURLs[i] = "url"
			}
			for i := range m.ClientURLs {
				m.ClientURLs[i] = "url"
			}
		}
	})
}

func opAlarm(r *pb.AlarmRequest) operation {
	return call("Alarm", r, func(s *server) func(context.Context, *pb.AlarmRequest, ...grpc.CallOption) (*pb.AlarmResponse, error) {
		return s.maint.Alarm
	}, func(s *server, response *pb.AlarmResponse) {
		for _, a := range response.Alarms {
			if a.MemberID == s.memberID {
				a.MemberID = 1
			}
		}
	})
}

// opAlarmRound raises an alarm, tries what the alarm forbids and what it does
// not, and takes the alarm back.
func opAlarmRound(alarm pb.AlarmType, key []byte) operation {
	return operation{text: fmt.Sprintf("with alarm %s: Put, Txn, Range, DeleteRange, LeaseGrant, Compact, Status on %q", alarm, key),
		run: func(ctx context.Context, s *server) answer {
			out := answer{}
			raise := func(action pb.AlarmRequest_AlarmAction) operation {
				// The request names the member, so it is made for each server. A server may keep a member that is
				// said to be corrupt from answering, so that alarm is about nobody.
				member := s.memberID
				if alarm == pb.AlarmType_CORRUPT {
					member = 271828
				}
				return opAlarm(&pb.AlarmRequest{Action: action, Alarm: alarm, MemberID: member})
			}
			put := &pb.PutRequest{Key: key, Value: []byte("under alarm")}
			steps := []struct {
				name string
				op   operation
			}{
				{"activate", raise(pb.AlarmRequest_ACTIVATE)},
				{"activate_again", raise(pb.AlarmRequest_ACTIVATE)},
				{"get", opAlarm(&pb.AlarmRequest{Action: pb.AlarmRequest_GET})},
				{"status", opStatus()},
				{"put", opPut(put)},
				{"txn_put", opTxn(&pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: put}}}})},
				{"txn_range", opTxn(&pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key}}}}})},
				{"range", opRange(&pb.RangeRequest{Key: key})},
				{"range_serializable", opRange(&pb.RangeRequest{Key: key, Serializable: true})},
				{"delete", opDelete(&pb.DeleteRangeRequest{Key: []byte("nobody has this key")})},
				{"grant", opLeaseGrant(&pb.LeaseGrantRequest{ID: 271828, TTL: 500})},
				{"revoke", opLeaseRevoke(271828)},
				{"compact", opCompact(&pb.CompactionRequest{Revision: math.MaxInt64})},
				{"deactivate", raise(pb.AlarmRequest_DEACTIVATE)},
				{"deactivate_again", raise(pb.AlarmRequest_DEACTIVATE)},
				{"get_after", opAlarm(&pb.AlarmRequest{Action: pb.AlarmRequest_GET})},
				{"cleanup", opLeaseRevoke(271828)},
				{"put_after", opPut(put)},
			}
			for _, step := range steps {
				out.merge(step.name, step.op.run(ctx, s))
			}
			return out
		}}
}

// opTooLarge sends a value near and above the limit on requests.
func opTooLarge(size int, key []byte) operation {
	return operation{text: fmt.Sprintf("Put and Txn of %d bytes to %q", size, key), run: func(ctx context.Context, s *server) answer {
		put := &pb.PutRequest{Key: key, Value: bytes.Repeat([]byte("x"), size)}
		out := answer{}
		out.merge("put", opPut(put).run(ctx, s))
		out.merge("txn", opTxn(&pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: put}}}}).run(ctx, s))
		out.merge("more_than_a_frame", opPut(&pb.PutRequest{Key: key, Value: bytes.Repeat([]byte("x"), 3<<20)}).run(ctx, s))
		out.merge("small_again", opPut(&pb.PutRequest{Key: key, Value: []byte("small")}).run(ctx, s))
		return out
	}}
}

func opDefragment() operation {
	return call("Defragment", &pb.DefragmentRequest{}, func(s *server) func(context.Context, *pb.DefragmentRequest, ...grpc.CallOption) (*pb.DefragmentResponse, error) {
		return s.maint.Defragment
	}, nil)
}

// opSnapshot reads a whole snapshot and checks what restoring tools check: the
// remaining byte counts, and the hash behind the last page.
func opSnapshot() operation {
	return operation{text: "Snapshot", run: func(ctx context.Context, s *server) answer {
		ctx, cancel := context.WithTimeout(ctx, callDeadline)
		defer cancel()
		stream, err := s.maint.Snapshot(ctx, &pb.SnapshotRequest{})
		if err != nil {
			return failure(err)
		}
		out, body, remaining, first := answer{}, []byte(nil), uint64(0), true
		for {
			r, err := stream.Recv()
			if err == io.EOF {
				break
			}
			if err != nil {
				return failure(err)
			}
			if !first && len(body) > 0 && r.RemainingBytes+uint64(len(r.Blob)) != remaining && r.RemainingBytes != 0 {
				out["remaining_bytes"] = "do not count down"
			}
			first, remaining = false, r.RemainingBytes
			body = append(body, r.Blob...)
			out["version"] = r.Version
			out["header"] = strconv.FormatBool(r.Header != nil)
		}
		out["last_remaining_bytes"] = strconv.FormatUint(remaining, 10)
		out["size_mod_512"] = strconv.Itoa(len(body) % 512)
		if len(body) > sha256.Size {
			db, hash := body[:len(body)-sha256.Size], body[len(body)-sha256.Size:]
			want := sha256.Sum256(db)
			out["hash_fits"] = strconv.FormatBool(bytes.Equal(want[:], hash))
		}
		return out
	}}
}
