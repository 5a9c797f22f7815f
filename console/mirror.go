package console

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/mirror"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/throttle"
)

// mirroring keeps a console's mirror, and has `march recover` find it.
type mirroring struct {
	*view
	mirror *mirror.Follower // nil for none
	file   *mirror.File     // nil for none
}

// newMirroring opens the mirror's file, if there is one. Its error is Refused.
func newMirroring(v *view) (*mirroring, error) {
	s := &mirroring{view: v}
	if v.cfg.MirrorTags == 0 {
		return s, nil
	}
	m := mirror.New(v.cfg.MirrorTags)
	if v.cfg.Mirror != "" {
		var err error
		if s.file, err = mirror.OpenFile(v.cfg.Mirror, m); err != nil {
			return nil, err
		}
	}
	s.mirror = mirror.NewFollower(m, mirror.Config{
		Cluster: v.ledger.Cluster(), Gets: v.ledger.Gets, File: s.file, Logger: v.log.Named("mirror"),
		Check: func(ctx context.Context) error {
			_, err := v.ledger.CheckNow(ctx)
			return err
		},
	})
	return s, nil
}

// checkMirror returns an error if the mirror's file is of another cluster than the ledger's. It
// needs etcd.
func (s *mirroring) checkMirror(ctx context.Context) error {
	if s.mirror == nil || s.mirror.UUID() == "" {
		return nil
	}
	uuid, err := s.ledger.UUID(ctx)
	if err != nil || uuid == s.mirror.UUID() {
		return nil // without etcd the follower compares them later
	}
	return allocator.Errorf(allocator.Refused, "mirror %s: it is of cluster %s; this is cluster %s",
		s.cfg.Mirror, s.mirror.UUID(), uuid)
}

const (
	// announceEvery is how often a console looks whether its key is there.
	announceEvery = 5 * time.Second
	// retireFor bounds how long it tries to remove the key at its end.
	retireFor = time.Second
)

// announce keeps the key by which `march recover` finds this console, until ctx ends.
func (s *mirroring) announce(ctx context.Context) {
	if s.cfg.Advertise == "" {
		return
	}
	var log throttle.Log
	every(ctx, func(ctx context.Context) time.Duration {
		if err := s.admin.Announce(ctx, s.process, s.cfg.Advertise); err != nil && ctx.Err() == nil {
			log.Log(time.Now(), s.log.Debug, "march recover cannot find this console by itself", "error", err)
		}
		return announceEvery
	})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), retireFor)
	defer cancel()
	if err := s.admin.Retire(ctx, s.process); err != nil {
		s.log.Debug("the key by which march recover finds this console stays for an hour", "error", err)
	}
}

func (s *mirroring) ReportMirror(r *marchv1.ReportMirrorRequest,
	stream grpc.ServerStreamingServer[marchv1.ReportMirrorResponse]) error {
	if s.mirror == nil {
		return allocator.Errorf(allocator.Refused, "this console keeps no mirror (--mirror-tags)")
	}
	if uuid := s.mirror.UUID(); uuid != "" && !strings.EqualFold(r.GetClusterUuid(), uuid) {
		return allocator.Errorf(allocator.Refused,
			"cluster_uuid: %q; this console's mirror is of cluster %s", r.GetClusterUuid(), uuid)
	}
	tick, parts, err := s.mirror.Report(uint32(r.GetAfterSequence()))
	if err != nil {
		return err
	}
	for p := range parts {
		b, err := json.Marshal(p)
		if err != nil {
			return err
		}
		if err := stream.Send(&marchv1.ReportMirrorResponse{
			Console: s.host, Process: s.name, Sequence: int64(tick), Part: b,
		}); err != nil {
			return err
		}
	}
	return nil
}

// AskMirror asks a console for what it saw of the store after a point of its mirror, and calls
// use with each part. Its errors are the console's, use's, and Invalid for an answer that is not
// valid.
func AskMirror(ctx context.Context, conn grpc.ClientConnInterface, q mirror.Question,
	use func(mirror.Part) error) (mirror.Answer, error) {
	ctx, cancel := context.WithCancel(ctx) // ends the stream if this function returns early
	defer cancel()
	stream, err := marchv1.NewConsoleServiceClient(conn).ReportMirror(ctx, &marchv1.ReportMirrorRequest{
		ClusterUuid: q.UUID, AfterSequence: int64(q.After)})
	if err != nil {
		return mirror.Answer{}, err
	}
	var a mirror.Answer
	for whole := false; ; {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) && whole {
			return a, nil
		}
		if err != nil {
			return a, err
		}
		var p mirror.Part
		if err := json.Unmarshal(message.GetPart(), &p); err != nil {
			return a, allocator.Errorf(allocator.Invalid, "the console's answer: %w", err)
		}
		a = mirror.Answer{Console: message.GetConsole(), Process: message.GetProcess(),
			Tick: uint32(message.GetSequence())}
		if err := use(p); err != nil {
			return a, err
		}
		whole = p.Rest != nil
	}
}
