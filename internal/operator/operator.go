// Package operator has the operators' calls that both rooms and consoles serve, so that
// both check and answer alike. These calls change an existing tag, or find the room
// that issued an ID. The package also has the code that such calls share: it names the
// caller for the audit, turns a tag into a message, and describes the errors of a
// layout.
package operator

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/admin"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/access"
	"github.com/march-id/march/internal/setting"
	"github.com/march-id/march/internal/words"
)

const maxActor = 128

// Actor returns the caller's name for the audit: the identity that it has proven, the address
// that the call comes from, and as a remark the name that the client gives. Without a policy
// there is no identity, and that name comes first.
func Actor(ctx context.Context) string {
	said := "unknown"
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		if v := md.Get(api.ActorHeader); len(v) > 0 && v[0] != "" {
			said = words.Plain(v[0], maxActor)
		}
	}
	who := said
	subject := access.From(ctx)
	if subject != nil {
		who = words.Plain(subject.Name(), maxActor)
	}
	if p, ok := peer.FromContext(ctx); ok {
		if host, _, err := net.SplitHostPort(p.Addr.String()); err == nil {
			who += " from " + host
		}
	}
	if subject != nil && said != "unknown" {
		who += ", says " + strconv.Quote(said)
	}
	return who
}

// MadeBy returns the name of the actor of a layout. If a migration made it, that is the actor that started the
// migration, as far as starter finds it.
func MadeBy(actor string, starter func(migration string) (string, error)) string {
	if id, moved := strings.CutPrefix(actor, "migration "); moved {
		if name, err := starter(id); err == nil {
			return name + " (" + actor + ")"
		}
	}
	return actor
}

// Refused records an attempt that was refused in the audit. If etcd does not take it, failed counts that.
func Refused(a *admin.Admin, failed func(to string)) func(context.Context, access.Refusal) error {
	return func(until context.Context, r access.Refusal) error {
		ctx, cancel := context.WithTimeout(until, 2*time.Second)
		defer cancel()
		action, object := "refused", "calls/"
		if r.Call != "" {
			action, object = "refused "+r.Call, "calls/"+r.Call
		}
		if tag, err := allocator.ParseTag(r.Tag); err == nil {
			object = string(record.Tags) + "/" + string(tag)
		} else if r.Tag != "" {
			action += " of tag " + r.Tag
		}
		err := a.Record(ctx, r.Subject+" from "+r.Address,
			fmt.Sprintf("%s (%s, %d times)", action, r.Why, r.Times), object)
		if err != nil && until.Err() == nil {
			failed("etcd")
		}
		return err
	}
}

// UpdateTag is the call of that name.
func UpdateTag(ctx context.Context, a *admin.Admin, r *marchv1.UpdateTagRequest) (*marchv1.UpdateTagResponse, error) {
	name, err := allocator.ParseTag(r.GetTag().GetName())
	if err != nil {
		return nil, err
	}
	var marks map[allocator.Room]record.Mark
	if r.GetDryRun() || r.GetTag().Limit != nil && !r.GetConfirm() {
		if marks, err = a.Marks(ctx, name); err != nil {
			return nil, err
		}
	}
	change := func(settings *record.TagSettings) error {
		before := settings.Limit
		if !time.Now().Before(settings.PrescaleUntil) { // it has ended, so it no longer bounds max_step
			settings.Prescale, settings.PrescaleUntil = 0, time.Time{}
		}
		if err := setting.Apply(r.GetTag(), settings); err != nil || settings.Limit >= before ||
			r.GetDryRun() || r.GetConfirm() {
			return err
		}
		if err := settings.Validate(); err != nil {
			return err
		}
		return stops(marks, settings.Limit)
	}
	if r.GetDryRun() {
		before, after, err := a.PreviewTag(ctx, name, r.GetIfRevision(), change)
		if err != nil {
			return nil, err
		}
		answer := &marchv1.UpdateTagResponse{Tag: setting.ToProto(after),
			Effects: setting.Effects(before.TagSettings, after.TagSettings, marks)}
		if after.Limit < before.Limit {
			answer.Stops, _ = setting.Stopped(marks, after.Limit)
		}
		return answer, nil
	}
	var tag record.Tag
	if r.GetIfRevision() != 0 {
		tag, err = a.UpdateTagAt(ctx, name, r.GetIfRevision(), change, Actor(ctx))
	} else {
		tag, err = a.UpdateTag(ctx, name, change, Actor(ctx))
	}
	if err != nil {
		return nil, err
	}
	return &marchv1.UpdateTagResponse{Tag: setting.ToProto(tag)}, nil
}

// stops returns an error that names the rooms which a limit stops, because they
// have already leased IDs from the limit on; nil if it stops none. Its Kind is
// Refused.
func stops(marks map[allocator.Room]record.Mark, limit int64) error {
	_, rooms := setting.Stopped(marks, limit)
	if rooms == nil {
		return nil
	}
	return allocator.Errorf(allocator.Refused,
		"limit: %d lies below IDs that rooms have already leased, so these rooms would stop issuing at once: %s; "+
			"confirm the limit if you want that",
		limit, strings.Join(rooms, ", "))
}

// SkipTag is the call of that name.
func SkipTag(ctx context.Context, a *admin.Admin, r *marchv1.SkipTagRequest) (*marchv1.SkipTagResponse, error) {
	name, err := allocator.ParseTag(r.GetName())
	if err != nil {
		return nil, err
	}
	if r.GetTo() < 1 {
		return nil, allocator.Errorf(allocator.Invalid, "to: %d; allowed: 1 to %d", r.GetTo(), int64(allocator.MaxID-1))
	}
	if len(r.GetRooms()) > allocator.MaxRooms {
		return nil, allocator.Errorf(allocator.Invalid, "rooms: %d named; allowed: up to %d",
			len(r.GetRooms()), allocator.MaxRooms)
	}
	rooms := make([]allocator.Room, len(r.GetRooms()))
	for i, room := range r.GetRooms() {
		if rooms[i], err = allocator.ParseRoom(room); err != nil {
			return nil, err
		}
	}
	tag, err := a.SkipTag(ctx, name, rooms, r.GetTo(), r.GetForce(), Actor(ctx))
	if err != nil {
		return nil, err
	}
	return &marchv1.SkipTagResponse{Tag: setting.ToProto(tag)}, nil
}

// PrescaleTag is the call of that name.
func PrescaleTag(ctx context.Context, a *admin.Admin,
	r *marchv1.PrescaleTagRequest) (*marchv1.PrescaleTagResponse, error) {
	name, err := allocator.ParseTag(r.GetName())
	if err != nil {
		return nil, err
	}
	var until time.Time
	if r.GetStep() != 0 {
		d, err := setting.Duration("duration", r.GetDuration())
		if err != nil {
			return nil, err
		}
		if d < time.Second || d > allocator.LongestReserve {
			return nil, allocator.Errorf(allocator.Invalid, "duration: %v; allowed: 1s to %v",
				d, allocator.LongestReserve)
		}
		until = time.Now().Add(d).UTC().Truncate(time.Millisecond)
	}
	tag, err := a.UpdateTag(ctx, name, func(settings *record.TagSettings) error {
		settings.Prescale, settings.PrescaleUntil = r.GetStep(), until
		return nil
	}, Actor(ctx))
	if err != nil {
		return nil, err
	}
	return &marchv1.PrescaleTagResponse{Tag: setting.ToProto(tag)}, nil
}
