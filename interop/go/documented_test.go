package main

import "testing"

func failures(check func(d documentedTally, t *tally)) int {
	d, t := documentedTally{}, &tally{}
	check(d, t)
	return t.failed
}

func TestDocumentedRequests(t *testing.T) {
	etcds := answer{"status": "404", "body": "\n404 page not found"}
	ours := answer{"status": "404", "body": "\n404 page not found: API version 2 is not served here, nor by etcd"}
	for _, c := range []struct {
		name       string
		subject    answer
		isMainstay bool
		want       int
	}{
		{"as documented", ours, true, 0},
		{"no longer different", etcds, true, 1},
		{"different in more", answer{"status": "200", "body": ours["body"]}, true, 1},
		{"another text", answer{"status": "404", "body": "\nnot found"}, true, 1},
		{"another server", ours, false, 1},
		{"another server that is the same", etcds, false, 0},
	} {
		got := failures(func(d documentedTally, t *tally) { d.checkRequest(t, get("/v2/keys"), etcds, c.subject, c.isMainstay) })
		if got != c.want {
			t.Errorf("%s: want %d failures, got %d", c.name, c.want, got)
		}
	}
	other := failures(func(d documentedTally, t *tally) { d.checkRequest(t, get("/health"), etcds, ours, true) })
	if other != 1 {
		t.Error("a difference of another request was not seen")
	}
}

func TestDocumentedFamilies(t *testing.T) {
	reference := answer{"etcd_snap_fsync_duration_seconds": "histogram", "etcd_server_has_leader": "gauge {}"}
	for _, c := range []struct {
		family     string
		subject    answer
		isMainstay bool
		want       int
	}{
		{"etcd_snap_fsync_duration_seconds", answer{}, true, 0},
		{"etcd_snap_fsync_duration_seconds", reference, true, 1},
		{"etcd_snap_fsync_duration_seconds", answer{}, false, 1},
		{"etcd_snap_fsync_duration_seconds", reference, false, 0},
		{"etcd_server_has_leader", answer{}, true, 1},
	} {
		got := failures(func(d documentedTally, t *tally) { d.checkFamily(t, c.family, reference, c.subject, c.isMainstay) })
		if got != c.want {
			t.Errorf("%s at %v: want %d failures, got %d", c.family, c.subject, c.want, got)
		}
	}
}

func TestWhatNoLongerDiffersFails(t *testing.T) {
	all := len(differentRequests) + len(absentFamilies)
	if got := failures(func(d documentedTally, t *tally) { d.finish(t) }); got != all {
		t.Errorf("want %d failures, got %d", all, got)
	}
	met := func(d documentedTally, t *tally) {
		for i := range differentRequests {
			d[&differentRequests[i]]++
		}
		for i := range absentFamilies {
			d[&absentFamilies[i]]++
		}
		d.finish(t)
	}
	if got := failures(met); got != 0 {
		t.Errorf("want no failure, got %d", got)
	}
}

func TestADocumentedRequestIsAsked(t *testing.T) {
	for _, known := range differentRequests {
		asked := false
		for _, r := range httpRequests {
			asked = asked || r.method+" "+r.path == known.name
		}
		if !asked {
			t.Errorf("%s is not among the requests", known.name)
		}
	}
}
