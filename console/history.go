package console

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/minutes"
)

// mostMigrations bounds the migrations of a history.
const mostMigrations = 50

// GetHistory implements ConsoleService. The migrations are those of its time; while etcd does not answer, those that
// are known.
func (s *Server) GetHistory(ctx context.Context, r *marchv1.GetHistoryRequest) (*marchv1.GetHistoryResponse, error) {
	back, step, err := minutes.Check(r.GetMinutes(), r.GetStep())
	if err != nil {
		return nil, err
	}
	now, outage, err := s.shown(ctx)
	if err != nil {
		return nil, err
	}
	first := minutes.First(time.Now(), back, step)
	//nolint:gosec // 1440 at most
	answer := &marchv1.GetHistoryResponse{First: timestamppb.New(first), Step: int32(step)}
	all := newHistories(first, time.Duration(step)*time.Minute, int(back/step))
	for _, room := range names(now.Layout.Layout.Rooms()) {
		all.add(room, "", 0, nil)
	}
	for k, answered := range askEach(ctx, s.rooms, now.instances, living(now.instances), askTimeout,
		func(ctx context.Context, to marchv1.RoomServiceClient) (*marchv1.GetInstanceHistoryResponse, error) {
			//nolint:gosec // 1440 at most
			q := &marchv1.GetInstanceHistoryRequest{Minutes: int32(back), Step: int32(step)}
			return to.GetInstanceHistory(ctx, q)
		}) {
		i := now.instances[k]
		all.addAll(string(i.Room), answered.is)
		if i.Alive && answered.err != nil {
			answer.Silent = append(answer.Silent, string(i.ID()))
		}
	}
	answer.Rooms, answer.Tags = all.rooms(), all.busiest("")
	var migrations []record.Migration
	if outage == nil {
		if migrations, _, err = s.admin.Migrations(ctx, "", mostMigrations); err != nil {
			return nil, err
		}
	} else if now.Migration != nil {
		migrations = append(migrations, *now.Migration)
	}
	for _, m := range slices.Backward(migrations) { // the oldest first
		mark := &marchv1.HistoryMigration{Id: m.ID, Began: timestamppb.New(m.Created),
			State: api.FromWord[marchv1.MigrationState](string(m.State))}
		if m.State.Ended() {
			mark.Ended = timestamppb.New(m.Updated)
		}
		if !m.State.Ended() || !m.Updated.Before(first) {
			answer.Migrations = append(answer.Migrations, mark)
		}
	}
	return answer, nil
}

// histories puts together what instances remember, by room and tag. The history of a whole room has no tag, and that
// of a tag in all rooms no room.
type histories struct {
	first  time.Time
	step   time.Duration
	points int
	of     map[[2]string]*marchv1.HistorySeries
}

func newHistories(first time.Time, step time.Duration, points int) histories {
	return histories{first, step, points, make(map[[2]string]*marchv1.HistorySeries)}
}

// addAll adds the answer of an instance of a room; nil if there is none.
func (h histories) addAll(room string, answer *marchv1.GetInstanceHistoryResponse) {
	at := int(answer.GetFirst().AsTime().Sub(h.first) / h.step) // the place of its first point
	h.add(room, "", at, answer.GetAll())
	for _, tag := range answer.GetTags() {
		h.add(room, tag.GetTag(), at, tag)
		h.add("", tag.GetTag(), at, tag)
	}
}

// add adds an instance's values, the first of which is at a place.
func (h histories) add(room, tag string, at int, p *marchv1.HistorySeries) {
	key := [2]string{room, tag}
	s := h.of[key]
	if s == nil {
		none := func() []float32 { return slices.Repeat([]float32{minutes.Unknown}, h.points) }
		s = &marchv1.HistorySeries{Tag: tag, Rates: none(), Reserves: none(), Failed: none()}
		if tag == "" {
			s.EtcdLatencies, s.EtcdAway = none(), none()
		}
		h.of[key] = s
	}
	sum := func(a, b float32) float32 { return a + b }
	longest := func(a, b float32) float32 { return max(a, b) }
	least := func(a, b float32) float32 { return min(a, b) }
	joinKnown(s.GetRates(), p.GetRates(), at, sum)
	joinKnown(s.GetReserves(), p.GetReserves(), at, least)
	joinKnown(s.GetEtcdLatencies(), p.GetEtcdLatencies(), at, longest)
	joinKnown(s.GetFailed(), p.GetFailed(), at, sum)
	joinKnown(s.GetEtcdAway(), p.GetEtcdAway(), at, longest)
}

// joinKnown joins known values to those in dst. Values that are not in the time of dst are left out.
func joinKnown(dst, values []float32, at int, with func(a, b float32) float32) {
	for i, v := range values {
		switch k := at + i; {
		case k < 0 || k >= len(dst) || v < 0:
		case dst[k] < 0:
			dst[k] = v
		default:
			dst[k] = with(dst[k], v)
		}
	}
}

// rooms returns the histories of rooms, by name.
func (h histories) rooms() (list []*marchv1.RoomHistory) {
	for key, s := range h.of {
		if key[1] == "" {
			list = append(list, &marchv1.RoomHistory{Room: key[0], All: s, Tags: h.busiest(key[0])})
		}
	}
	slices.SortFunc(list, func(a, b *marchv1.RoomHistory) int { return cmp.Compare(a.GetRoom(), b.GetRoom()) })
	return list
}

// busiest returns the tags with the highest rates in a room, or in all rooms: minutes.MaxTags at most.
func (h histories) busiest(room string) (list []*marchv1.HistorySeries) {
	sums := make(map[*marchv1.HistorySeries]float64)
	for key, s := range h.of {
		if key[0] == room && key[1] != "" {
			list = append(list, s)
			for _, v := range s.GetRates() {
				sums[s] += max(float64(v), 0)
			}
		}
	}
	slices.SortFunc(list, func(a, b *marchv1.HistorySeries) int {
		return cmp.Or(cmp.Compare(sums[b], sums[a]), cmp.Compare(a.GetTag(), b.GetTag()))
	})
	return list[:min(len(list), minutes.MaxTags)]
}
