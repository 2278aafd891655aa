package main

import (
	"fmt"
	"strings"
)

// difference is one that COMPAT.md documents, of a server that is Mainstay.
type difference struct {
	// compat is the number of its row there.
	compat int
	// why says in a few words why it is meant.
	why string
	// name is the request as "METHOD path", or the beginning of the names of families of metrics.
	name string
	// wanted tells whether the two answers differ as documented and in nothing else. It is nil
	// for families of metrics, which are absent.
	wanted func(reference, subject answer) bool
}

var differentRequests = []difference{
	{173, "says where keys of API version 2 can be taken to", "GET /v2/keys", func(reference, subject answer) bool {
		told := strings.TrimSpace(reference["body"]) + ": API version 2 is not served here"
		rest := make(answer, len(subject))
		for path, value := range subject {
			rest[path] = value
		}
		rest["body"] = reference["body"]
		return strings.HasPrefix(strings.TrimSpace(subject["body"]), told) && len(differences(reference, rest, nil)) == 0
	}},
}

var absentFamilies = []difference{
	{11, "there is no etcd store, whose steps of a commit these are", "etcd_debugging_disk_backend_commit_", nil},
	{11, "there are no snapshot files of etcd's", "etcd_debugging_snap_", nil},
	{11, "there are no snapshot files of etcd's", "etcd_snap_", nil},
	{11, "there is no store of API version 2", "etcd_debugging_store_", nil},
	{11, "a member is no proxy", "etcd_grpc_proxy_", nil},
}

// documentedRequest returns the documented difference of a request, if there is one.
func documentedRequest(r httpRequest) *difference {
	for i := range differentRequests {
		if differentRequests[i].name == r.method+" "+r.path {
			return &differentRequests[i]
		}
	}
	return nil
}

// documentedAbsence returns the documented difference by which a family of metrics is absent, if there is one.
func documentedAbsence(family string) *difference {
	for i := range absentFamilies {
		if strings.HasPrefix(family, absentFamilies[i].name) {
			return &absentFamilies[i]
		}
	}
	return nil
}

// isMainstay tells by its metrics whether a server is the one whose differences are documented.
func isMainstay(metrics answer) bool {
	for family := range metrics {
		if strings.HasPrefix(family, "mainstay_") {
			return true
		}
	}
	return false
}

// documentedTally counts the documented differences that were met.
type documentedTally map[*difference]int

// checkRequest holds two answers to a request against each other. `subjectIsMainstay` says whether documented differences
// are wanted: one that is not there, or is another one, fails.
func (d documentedTally) checkRequest(t *tally, r httpRequest, reference, subject answer, subjectIsMainstay bool) {
	found := differences(reference, subject, map[string]int64{"body.TTL": 3})
	if known := documentedRequest(r); known != nil && subjectIsMainstay {
		ok := known.wanted(reference, subject)
		t.check(ok, "%s %s %s %s differs in another way than COMPAT-%d says (%s), or not at all\n    %s", r.method, r.path, r.body, r.header,
			known.compat, known.why, strings.Join(found, "\n    "))
		if ok {
			d[known]++
		}
		return
	}
	t.check(len(found) == 0, "%s %s %s %s\n    %s", r.method, r.path, r.body, r.header, strings.Join(found, "\n    "))
}

// checkFamily holds a family of metrics of the reference against that of the subject.
func (d documentedTally) checkFamily(t *tally, family string, reference, subject answer, subjectIsMainstay bool) {
	got, there := subject[family]
	if known := documentedAbsence(family); known != nil && subjectIsMainstay {
		if t.check(!there, "metric %s: there, though COMPAT-%d says that it is not: %s", family, known.compat, known.why) {
			d[known]++
		}
		return
	}
	if !there {
		got = "(absent)"
	}
	t.check(got == reference[family], "metric %s: reference %s, subject %s", family, reference[family], got)
}

// finish fails for each documented difference that was not met, and prints those that were.
func (d documentedTally) finish(t *tally) {
	for _, list := range [][]difference{differentRequests, absentFamilies} {
		for i := range list {
			known := &list[i]
			name := known.name
			if known.wanted == nil {
				name = "metrics " + name + "..."
			}
			if t.check(d[known] > 0, "%s does not differ, though COMPAT-%d says so: %s", name, known.compat, known.why) {
				fmt.Printf("differs as COMPAT-%d says: %s (%d): %s\n", known.compat, name, d[known], known.why)
			}
		}
	}
}
