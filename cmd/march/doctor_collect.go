package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/operator"
)

const (
	// askedAtOnce is how many instances are asked at the same time.
	askedAtOnce = 16
	// maxDiagnosis bounds an answer, in bytes: one with profiles is large.
	maxDiagnosis = 64 << 20
)

// collectFacts asks a console for what it knows, and each process for what it tells of itself.
// ask says what they tell, and within bounds how long each instance may take. Its errors are
// those of the console's overview, but not that the console refuses to make one. dial connects to an instance.
func collectFacts(ctx context.Context, console grpc.ClientConnInterface, ask *marchv1.DiagnoseRequest,
	within time.Duration, dial dialInstance) (doctorFacts, error) {
	c := marchv1.NewConsoleServiceClient(console)
	var f doctorFacts
	var err error
	// A console without a cluster refuses, but etcd and the console can be judged.
	if f.Overview, err = freshOverview(ctx, c); allocator.KindOf(api.FromStatus(err)) == allocator.Refused {
		f.OverviewErr = api.FromStatus(err)
	} else if err != nil {
		return f, err
	}
	f.Answers = []processAnswer{askProcess(ctx, "the console", console, ask)}
	if f.Overview.GetLayout() == nil { // there is no cluster yet, or its layout is lost: the problems say which
		return f, nil
	}
	listed, err := c.ListInstances(ctx, &marchv1.ListInstancesRequest{Status: true})
	// While etcd is away, or refuses the console, the overview still has the problems.
	if err != nil {
		f.InstancesErr = err
	}
	f.Instances = listed.GetInstances()
	// Without etcd the console answers with the instances and tags as it read them before.
	// Instances can be asked all the same.
	if f.TagsErr = f.searchTags(ctx, c); f.TagsErr == nil {
		f.TagsErr = etcdAway(f.Overview)
	}
	if ctx.Err() != nil {
		return f, ctx.Err()
	}
	f.Answers = append(f.Answers, askInstances(ctx, f.Instances, ask, within, dial)...)
	return f, nil
}

// etcdAway returns why the console cannot read etcd, nil if it can.
func etcdAway(o *marchv1.GetOverviewResponse) error {
	for _, p := range o.GetProblems() {
		if p.GetKind() == marchv1.ProblemKind_PROBLEM_KIND_ETCD_AWAY && p.GetOf() == "console" {
			return errors.New(p.GetWhat())
		}
	}
	return nil
}

// A console measures instances and reads tags only while it is asked. So a first answer may
// be old, or lack them: it is asked again, this often and this long.
const (
	againAfter  = 100 * time.Millisecond
	againWithin = 2500 * time.Millisecond
)

// askUntilFresh calls ask again until it reports true, or for againWithin.
func askUntilFresh(ctx context.Context, ask func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, againWithin)
	defer cancel()
	for {
		done, err := ask()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done(): // what was answered has to do
			return nil
		case <-time.After(againAfter):
		}
	}
}

// freshOverview returns an overview with the problems of instances, if the console has them in time.
func freshOverview(ctx context.Context, c marchv1.ConsoleServiceClient) (o *marchv1.GetOverviewResponse, err error) {
	err = askUntilFresh(ctx, func() (bool, error) {
		o, err = c.GetOverview(ctx, &marchv1.GetOverviewRequest{})
		return o.GetAsOf() != nil || o.GetLayout() == nil, err
	})
	return o, err
}

// searchTags takes the scarce tags as they are now.
func (f *doctorFacts) searchTags(ctx context.Context, c marchv1.ConsoleServiceClient) error {
	var before *timestamppb.Timestamp
	first := true
	err := askUntilFresh(ctx, func() (bool, error) {
		found, err := c.SearchTags(ctx, &marchv1.SearchTagsRequest{Sort: marchv1.TagSort_TAG_SORT_USED, PageSize: 1})
		if first {
			before, first = found.GetAsOf(), false
			return false, err
		}
		return found.GetAsOf() != nil && !proto.Equal(found.GetAsOf(), before), err
	})
	if err != nil {
		return err
	}
	tags, found, err := operator.ScarceTags(func(r *marchv1.SearchTagsRequest) (*marchv1.SearchTagsResponse, error) {
		return c.SearchTags(ctx, r)
	})
	f.Tags, f.TagsTotal, f.TagsRead = tags, found.GetTotal(), found.GetAsOf() != nil
	return err
}

// dialInstance returns a connection to an instance, which must prove that it is that one.
type dialInstance func(address, room, name string) (*grpc.ClientConn, error)

// askInstances asks all instances that are alive, or answered the console without heartbeats.
func askInstances(ctx context.Context, instances []*marchv1.Instance, ask *marchv1.DiagnoseRequest,
	within time.Duration, dial dialInstance) []processAnswer {
	alive := slices.DeleteFunc(slices.Clone(instances), func(i *marchv1.Instance) bool {
		return !i.GetAlive() && i.GetStatus() == nil
	})
	answers := make([]processAnswer, len(alive))
	var work errgroup.Group
	work.SetLimit(askedAtOnce)
	for k, i := range alive {
		work.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, within)
			defer cancel()
			process := i.GetRoom() + "/" + i.GetName()
			conn, err := dial(cmp.Or(i.GetAdminAddress(), i.GetAddress()), i.GetRoom(), i.GetName())
			if err != nil {
				answers[k] = processAnswer{Process: process, Err: err}
				return nil
			}
			defer func() { _ = conn.Close() }()
			answers[k] = askProcess(ctx, process, conn, ask)
			return nil
		})
	}
	_ = work.Wait()
	return answers
}

func askProcess(ctx context.Context, process string, conn grpc.ClientConnInterface,
	ask *marchv1.DiagnoseRequest) processAnswer {
	a := processAnswer{Process: process, Sent: time.Now()}
	a.Got, a.Err = marchv1.NewDiagnoseServiceClient(conn).Diagnose(ctx, ask, grpc.MaxCallRecvMsgSize(maxDiagnosis))
	a.Took = time.Since(a.Sent)
	if a.Err != nil {
		a.Got = nil
	}
	return a
}
