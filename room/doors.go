package room

import (
	"context"

	"google.golang.org/grpc/peer"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/internal/crash"
	"github.com/march-id/march/internal/serve"
	"github.com/march-id/march/room/redis"
)

// doors returns the doors for other systems' clients. They take IDs as IDService does.
func (s *Server) doors() []serve.Door {
	if s.cfg.Redis == nil {
		return nil
	}
	door := redis.New(redis.Config{
		Next: s.doorNext, NextRun: s.doorRun, Peek: s.doorPeek, Create: s.doorCreate,
		Version: s.cfg.Build, Logger: s.log,
	})
	if s.cfg.Metrics != nil {
		s.cfg.Metrics.Register(door.Metrics())
	}
	return []serve.Door{{Listener: s.cfg.Redis, Run: door.Run}}
}

func (s *Server) doorNext(ctx context.Context, tag string) (int64, error) {
	id, err := s.next(ctx, tag)
	if err == nil {
		s.issued.Add(1)
		crash.Here(crash.BeforeReply)
	}
	return id, err
}

func (s *Server) doorRun(ctx context.Context, tag string, n int64) (first int64, err error) {
	run, err := s.nextRun(ctx, tag, n)
	if err != nil {
		return 0, err
	}
	s.issued.Add(n)
	crash.Here(crash.BeforeReply)
	return run.First, nil
}

// doorPeek returns the next of the IDs that the instance holds, or else the first that it
// may lease. It creates no tag, and counts as no request for IDs.
func (s *Server) doorPeek(ctx context.Context, tag string) (next int64, err error) {
	if s.cfg.CreateTags && s.chains.get(tag) == nil {
		if _, err := s.admin.Tag(ctx, allocator.Tag(tag)); err != nil {
			return 0, err
		}
	}
	var chain *tagChain // nil for time-ordered IDs
	if s.times.Get(tag) == nil {
		if chain, err = s.chain(ctx, tag); err != nil {
			return 0, err
		}
	}
	if chain == nil {
		return 0, allocator.Errorf(allocator.Refused, "tag %s has time-ordered IDs: the next one is not known", tag)
	}
	if held := chain.Segments(); len(held) > 0 {
		return held[0].First, nil
	}
	return max(chain.Status().Last+1, chain.getSpace().start), nil
}

// doorCreate makes a tag, where this room creates tags at all.
func (s *Server) doorCreate(ctx context.Context, name string, start int64) (made bool, err error) {
	tag, err := allocator.ParseTag(name)
	if err != nil {
		return false, err
	}
	if !s.cfg.CreateTags {
		switch _, err := s.doorPeek(ctx, name); {
		case err == nil, allocator.KindOf(err) == allocator.Refused: // it is there, of whichever kind
			return false, nil
		case allocator.KindOf(err) != allocator.NotFound:
			return false, err
		}
		return false, allocator.Errorf(allocator.Refused, "tag %s does not exist, and this room creates none; create it with `march tag create %s --start %d`, or start the room with --create-tags", tag, tag, start)
	}
	settings := record.DefaultTag()
	settings.Start = start
	actor := "room " + string(s.cfg.Room)
	if p, ok := peer.FromContext(ctx); ok {
		actor += ", for " + p.Addr.String()
	}
	_, err = s.admin.CreateTag(ctx, tag, settings, actor)
	if err != nil && allocator.KindOf(err) == allocator.Exists {
		return false, nil
	}
	return err == nil, err
}
