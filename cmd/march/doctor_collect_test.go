package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/testcluster"
)

// While etcd is away, doctor still lists the problems that the console knows, and says what it
// could not ask.
func TestCollectWithoutEtcd(t *testing.T) {
	c := testcluster.New(t)
	c.Init(testcluster.Halves(), "test")
	c.Room("a", "one", nil)
	console := c.Console(nil)
	collect := func() doctorFacts {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), testcluster.Patience)
		defer cancel()
		f, err := collectFacts(ctx, console.Conn, &marchv1.DiagnoseRequest{}, time.Second,
			func(address, _, _ string) (*grpc.ClientConn, error) { return api.Dial(address) })
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	collect()
	c.Etcd.Stop()
	testcluster.Await(t, "the console sees it", func() bool {
		o, err := console.GetOverview(context.Background(), &marchv1.GetOverviewRequest{})
		return err == nil && len(o.GetProblems()) > 0
	})
	facts := collect()
	if len(facts.Instances) != 1 || !slices.ContainsFunc(facts.Answers, func(a processAnswer) bool {
		return a.Process == "a/one"
	}) {
		t.Errorf("the instance was not asked: %v, %+v", facts.Instances, facts.Answers)
	}
	found := examine(facts)
	for _, want := range []struct {
		check string
		level string
	}{{"problems", levelFailed}, {"tags", levelUnknown}} {
		if !slices.ContainsFunc(found, func(f verdict) bool {
			return f.Check == want.check && f.Level == want.level
		}) {
			t.Errorf("no finding of %s is %s: %+v", want.check, want.level, found)
		}
	}
}
