package main

import (
	"bytes"
	"fmt"
	"sort"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// answer is a server's reply as field paths and printed values, for example
// "kvs[3].lease" = "7". A field that is not set is not present, as on the wire.
type answer map[string]string

// failure is the answer made of a gRPC status: its code and its exact text.
func failure(err error) answer {
	s := status.Convert(err)
	return answer{"error.code": s.Code().String(), "error.text": s.Message()}
}

// flatten adds a message to the answer under a path. Identity fields of the
// response header, which differ between any two servers, are left out.
func (a answer) flatten(path string, m proto.Message) {
	if m == nil || !m.ProtoReflect().IsValid() {
		return
	}
	a.message(path, m.ProtoReflect())
}

func (a answer) message(path string, m protoreflect.Message) {
	if path != "" {
		a[path] = "present"
		path += "."
	}
	header := m.Descriptor().FullName() == "etcdserverpb.ResponseHeader"
	if unknown := m.GetUnknown(); len(unknown) > 0 {
		a[path+"unknown_fields"] = fmt.Sprintf("%x", []byte(unknown))
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := string(fd.Name())
		if header && name != "revision" {
			return true
		}
		if fd.IsList() {
			list := v.List()
			a[path+name+".len"] = strconv.Itoa(list.Len())
			for i := range list.Len() {
				a.value(fmt.Sprintf("%s%s[%d]", path, name, i), fd, list.Get(i))
			}
			return true
		}
		a.value(path+name, fd, v)
		return true
	})
}

func (a answer) value(path string, fd protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		a.message(path, v.Message())
	case protoreflect.BytesKind:
		b := v.Bytes()
		if len(b) > 80 {
			a[path] = fmt.Sprintf("%q... (%d bytes, sum %x)", b[:40], len(b), sum(b))
		} else {
			a[path] = fmt.Sprintf("%q", b)
		}
	default:
		a[path] = fmt.Sprint(v.Interface())
	}
}

// sum is FNV-1a, enough to tell two long values apart in a report.
func sum(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// differences lists the paths in which two answers differ. A path in slack may
// differ numerically by that much (remaining lease times move with the clock).
func differences(reference, subject answer, slack map[string]int64) []string {
	paths := map[string]bool{}
	for p := range reference {
		paths[p] = true
	}
	for p := range subject {
		paths[p] = true
	}
	var out []string
	for p := range paths {
		r, inReference := reference[p]
		s, inSubject := subject[p]
		if inReference && inSubject && r == s {
			continue
		}
		if allowed, ok := slack[p]; ok && inReference && inSubject {
			rn, rerr := strconv.ParseInt(r, 10, 64)
			sn, serr := strconv.ParseInt(s, 10, 64)
			if rerr == nil && serr == nil && rn > 0 && sn > 0 && rn-sn <= allowed && sn-rn <= allowed {
				continue
			}
		}
		if !inReference {
			r = "(absent)"
		}
		if !inSubject {
			s = "(absent)"
		}
		out = append(out, fmt.Sprintf("%s: reference %s, subject %s", p, r, s))
	}
	sort.Strings(out)
	return out
}

// looseTies rewrites a sorted range answer into a form that does not depend on
// the order of entries whose sort field is equal, because etcd's sort is not
// stable. Entries of one tie are ordered by key; in the last tie of a cut
// answer, where even the membership is open, only the sort field is kept.
func looseTies(req *pb.RangeRequest, resp *pb.RangeResponse) {
	if req == nil || resp == nil || req.SortTarget == pb.RangeRequest_KEY || len(resp.Kvs) == 0 {
		return
	}
	byKey := func(kvs []*mvccpb.KeyValue) {
		sort.SliceStable(kvs, func(i, j int) bool { return bytes.Compare(kvs[i].Key, kvs[j].Key) < 0 })
	}
	if req.SortTarget == pb.RangeRequest_VALUE && req.KeysOnly {
		// The values that decided the order were removed from the answer.
		if resp.More {
			for i := range resp.Kvs {
				resp.Kvs[i] = &mvccpb.KeyValue{}
			}
			return
		}
		byKey(resp.Kvs)
		return
	}
	field := func(kv *mvccpb.KeyValue) string {
		switch req.SortTarget {
		case pb.RangeRequest_VERSION:
			return strconv.FormatInt(kv.Version, 10)
		case pb.RangeRequest_CREATE:
			return strconv.FormatInt(kv.CreateRevision, 10)
		case pb.RangeRequest_MOD:
			return strconv.FormatInt(kv.ModRevision, 10)
		default:
			return string(kv.Value)
		}
	}
	for from := 0; from < len(resp.Kvs); {
		to := from + 1
		for to < len(resp.Kvs) && field(resp.Kvs[to]) == field(resp.Kvs[from]) {
			to++
		}
		byKey(resp.Kvs[from:to])
		if to == len(resp.Kvs) && resp.More {
			for i := from; i < to; i++ {
				kv := resp.Kvs[i]
				resp.Kvs[i] = onlySortField(req.SortTarget, kv)
			}
		}
		from = to
	}
}

func onlySortField(target pb.RangeRequest_SortTarget, kv *mvccpb.KeyValue) *mvccpb.KeyValue {
	switch target {
	case pb.RangeRequest_VERSION:
		return &mvccpb.KeyValue{Version: kv.Version}
	case pb.RangeRequest_CREATE:
		return &mvccpb.KeyValue{CreateRevision: kv.CreateRevision}
	case pb.RangeRequest_MOD:
		return &mvccpb.KeyValue{ModRevision: kv.ModRevision}
	default:
		return &mvccpb.KeyValue{Value: kv.Value}
	}
}

// looseTxnTies applies looseTies to every range that a transaction executed.
func looseTxnTies(req *pb.TxnRequest, resp *pb.TxnResponse) {
	ops := req.Success
	if !resp.Succeeded {
		ops = req.Failure
	}
	for i, r := range resp.Responses {
		if i >= len(ops) {
			return
		}
		if rr := r.GetResponseRange(); rr != nil {
			looseTies(ops[i].GetRequestRange(), rr)
		}
		if nested := ops[i].GetRequestTxn(); nested != nil && r.GetResponseTxn() != nil {
			looseTxnTies(nested, r.GetResponseTxn())
		}
	}
}
