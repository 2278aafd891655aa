package main

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

func pod1(uid, name, node string, version int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(uid), ResourceVersion: fmt.Sprint(version)},
		Spec:       corev1.PodSpec{NodeName: node},
	}
}

// Each sequence of events begins behind a list of pod "a", of version 10, at version 10. What has to be said of it, or nothing.
func TestEventsAreJudged(t *testing.T) {
	added, changed, deleted := watch.Added, watch.Modified, watch.Deleted
	for name, one := range map[string]struct {
		events []watch.Event
		said   string
	}{
		"right": {[]watch.Event{
			{Type: added, Object: pod1("b", "b", "", 11)}, {Type: changed, Object: pod1("b", "b", "x", 12)},
			{Type: watch.Bookmark, Object: pod1("", "", "", 15)}, {Type: deleted, Object: pod1("b", "b", "x", 16)},
			{Type: added, Object: pod1("c", "b", "y", 17)},
		}, ""},
		"an event twice":    {[]watch.Event{{Type: changed, Object: pod1("a", "a", "x", 11)}, {Type: changed, Object: pod1("a", "a", "x", 11)}}, "is of 11, after 11"},
		"out of order":      {[]watch.Event{{Type: changed, Object: pod1("a", "a", "x", 12)}, {Type: added, Object: pod1("b", "b", "", 11)}}, "is of 11, after 12"},
		"before the list":   {[]watch.Event{{Type: changed, Object: pod1("a", "a", "x", 9)}}, "is of 9, after 10"},
		"added twice":       {[]watch.Event{{Type: added, Object: pod1("a", "a", "x", 11)}}, "added twice"},
		"never added":       {[]watch.Event{{Type: changed, Object: pod1("b", "b", "", 11)}}, "was not added"},
		"after its end":     {[]watch.Event{{Type: deleted, Object: pod1("a", "a", "x", 11)}, {Type: added, Object: pod1("a", "a", "x", 12)}}, "after it was deleted"},
		"doubled":           {[]watch.Event{{Type: added, Object: pod1("b", "a", "", 11)}}, "two objects are called n/a"},
		"bound elsewhere":   {[]watch.Event{{Type: changed, Object: pod1("a", "a", "y", 11)}}, `went from x to "y"`},
		"an older bookmark": {[]watch.Event{{Type: watch.Bookmark, Object: pod1("", "", "", 9)}}, "a bookmark is of 9"},
	} {
		seen := newFigures()
		judge := newJudge("pods", seen, func(watch.EventType, types.UID, runtime.Object, bool) {})
		list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "10"}, Items: []corev1.Pod{*pod1("a", "a", "x", 10)}}
		at, ok := judge.listed(list, 0)
		if !ok || at != 10 {
			t.Fatalf("%s: the list is of %d", name, at)
		}
		stream := watch.NewFakeWithChanSize(len(one.events), false)
		for _, event := range one.events {
			stream.Action(event.Type, event.Object)
		}
		stream.Stop()
		if _, err := judge.stream(stream, at, 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		said := strings.Join(seen.mistakes, "; ")
		if one.said == "" && said != "" || !strings.Contains(said, one.said) {
			t.Errorf("%s: %q instead of %q", name, said, one.said)
		}
	}
}

func TestListsAreJudged(t *testing.T) {
	seen := newFigures()
	var gone []types.UID
	judge := newJudge("pods", seen, func(kind watch.EventType, uid types.UID, object runtime.Object, _ bool) {
		if kind == watch.Deleted && object == nil {
			gone = append(gone, uid)
		}
	})
	list := func(version string, pods ...*corev1.Pod) *corev1.PodList {
		answer := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: version}}
		for _, one := range pods {
			answer.Items = append(answer.Items, *one)
		}
		return answer
	}
	judge.listed(list("10", pod1("a", "a", "x", 8), pod1("b", "b", "", 9)), 0)
	judge.listed(list("20", pod1("c", "a", "", 15), pod1("b", "b", "y", 16)), 0)
	if len(seen.mistakes) != 0 || len(gone) != 1 || gone[0] != "a" || judge.live() != 2 {
		t.Errorf("a pod that took another's name while no watch was open: %q, gone %q", seen.mistakes, gone)
	}
	judge.listed(list("19", pod1("c", "a", "", 15)), 0)
	if !strings.Contains(strings.Join(seen.mistakes, ""), "a list is of 19, after 20") {
		t.Errorf("an old list: %q", seen.mistakes)
	}
}
