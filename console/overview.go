package console

import (
	"cmp"
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger"
	"github.com/march-id/march/api"
	"github.com/march-id/march/api/levers"
	marchv1 "github.com/march-id/march/api/march/v1"
)

const (
	// sampleEvery is how often instances are asked while somebody looks.
	// api.RatesKept rates are kept.
	sampleEvery = time.Second
	// sampleWithin is how long an overview waits for a first sample: a page must
	// come at once. There will be another.
	sampleWithin = 50 * time.Millisecond
	// sampleAge is how old a sample may be.
	sampleAge = 3 * sampleEvery
)

// sample is what all instances told at one moment. It does not change.
type sample struct {
	at        time.Time
	instances map[ledger.InstanceID]told
	rates     map[allocator.Room][]float64 // the oldest first, for each room as many; -1 for unknown
}

// told is what one instance told.
type told struct {
	status *marchv1.InstanceStatus // nil where it did not answer
	rate   float64                 // IDs per second since it was asked before, or in its last second; -1 for unknown
}

// look asks all instances with a heartbeat.
func (s *Server) look(ctx context.Context, before sample) (sample, time.Duration, error) {
	began := time.Now()
	instances, err := s.ledger.Instances(ctx, "")
	if err != nil {
		return sample{}, sampleEvery, err
	}
	now := next(before, instances, s.ask(ctx, instances), began)
	return now, max(sampleEvery-time.Since(began), sampleEvery/10), nil
}

// next returns the sample after one. Where there was none, or long ago, the
// instances tell what their rates were meanwhile: so a console that was started
// just now, or looks again, shows what another one does.
func next(before sample, instances []ledger.InstanceRecord, answers []*marchv1.GetInstanceResponse, at time.Time) sample {
	now := sample{at: at, instances: make(map[ledger.InstanceID]told, len(instances)), rates: make(map[allocator.Room][]float64)}
	rates := make(map[allocator.Room]float64)
	for i, instance := range instances {
		t := told{status: answers[i].GetStatus(), rate: -1}
		if own := answers[i].GetRates(); len(own) > 0 {
			t.rate = own[len(own)-1]
		}
		was := before.instances[instance.ID()]
		if seconds := at.Sub(before.at).Seconds(); t.status != nil && was.status != nil && seconds > 0 &&
			t.status.GetStarted().AsTime().Equal(was.status.GetStarted().AsTime()) {
			t.rate = float64(max(t.status.GetIssued()-was.status.GetIssued(), 0)) / seconds
		}
		now.instances[instance.ID()] = t
		sum, some := rates[instance.Room]
		switch {
		case t.rate < 0 && instance.Alive && !some:
			rates[instance.Room] = -1
		case t.rate >= 0:
			rates[instance.Room] = max(sum, 0) + t.rate
		}
	}
	// A second that nobody measured has a place too: time goes on.
	missed := 0
	if !before.at.IsZero() {
		missed = min(int((at.Sub(before.at)+sampleEvery/2)/sampleEvery)-1, api.RatesKept)
	}
	for room := range before.rates {
		if _, ok := rates[room]; !ok {
			rates[room] = 0
		}
	}
	length := 0 // of what each room has before now
	for _, list := range before.rates {
		length = len(list)
	}
	if before.at.IsZero() {
		for _, answer := range answers {
			length = max(length, len(answer.GetRates())-1)
		}
	}
	for room, rate := range rates {
		list, had := before.rates[room]
		if had {
			list = slices.Concat(list, past(room, instances, answers, missed))
		} else {
			list = past(room, instances, answers, length+missed)
		}
		list = append(list, rate)
		now.rates[room] = list[max(len(list)-api.RatesKept, 0):]
	}
	return now
}

// past returns the n rates of a room before the present one, as its instances
// remember them; -1 where none does.
func past(room allocator.Room, instances []ledger.InstanceRecord, answers []*marchv1.GetInstanceResponse, n int) []float64 {
	list := slices.Repeat([]float64{-1}, n)
	for i, instance := range instances {
		if instance.Room != room {
			continue
		}
		own := answers[i].GetRates()
		for k := range n {
			if at := len(own) - 1 - n + k; at >= 0 {
				list[k] = max(list[k], 0) + own[at]
			}
		}
	}
	return list
}

// ask asks each instance with a heartbeat for its status; nil where one does
// not answer.
func (s *Server) ask(ctx context.Context, instances []ledger.InstanceRecord) []*marchv1.GetInstanceResponse {
	answers := make([]*marchv1.GetInstanceResponse, len(instances))
	var asking errgroup.Group
	asking.SetLimit(askAtOnce)
	for i, instance := range instances {
		if !instance.Alive {
			continue
		}
		asking.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			if conn, err := s.rooms.dial(instance.Address); err == nil {
				if answer, err := marchv1.NewRoomServiceClient(conn).GetInstance(ctx, &marchv1.GetInstanceRequest{}); err == nil {
					answers[i] = answer
				}
			}
			return nil
		})
	}
	_ = asking.Wait()
	return answers
}

// GetOverview implements ConsoleService.
func (s *Server) GetOverview(ctx context.Context, _ *marchv1.GetOverviewRequest) (*marchv1.GetOverviewResponse, error) {
	record, problem, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	answer := &marchv1.GetOverviewResponse{Layout: recordToProto(record), Ever: names(record.Ever), Halt: s.halt(), Problem: problem}
	if answer.Cluster, err = s.ledger.UUID(ctx); err != nil {
		return nil, err
	}
	switch settings, err := s.ledger.Settings(ctx); {
	case err == nil:
		answer.Settings = clusterToProto(settings)
	case allocator.KindOf(err) != allocator.Internal: // else they cannot be used, which is the problem
		return nil, err
	}
	instances, err := s.ledger.Instances(ctx, "")
	if err != nil {
		return nil, err
	}
	m, active, err := s.ledger.ActiveMigration(ctx)
	if err != nil {
		return nil, err
	}
	if active {
		answer.Migration = migrationToProto(m, instances)
	}
	now, at, _ := s.samples.get(ctx, sampleAge, sampleWithin)
	if time.Since(at) > sampleAge {
		now = sample{}
	} else {
		answer.AsOf = timestamppb.New(at)
	}
	rooms := record.Layout.Rooms()
	for _, i := range instances {
		if !slices.Contains(rooms, i.Room) {
			rooms = append(rooms, i.Room)
		}
	}
	for _, room := range rooms {
		var held *marchv1.Range
		if r, ok := record.Layout.Ranges[room]; ok {
			held = &marchv1.Range{Lower: r.Lower, Upper: r.Upper}
		}
		answer.Rooms = append(answer.Rooms, roomStatus(room, held, instances, now))
	}
	return answer, nil
}

// roomStatus is what the instances of a room told, together.
func roomStatus(room allocator.Room, r *marchv1.Range, instances []ledger.InstanceRecord, now sample) *marchv1.RoomStatus {
	p := &marchv1.RoomStatus{Name: string(room), Range: r, RateEvery: durationpb.New(sampleEvery), Rates: now.rates[room]}
	if n := len(p.GetRates()); n > 0 && p.GetRates()[n-1] >= 0 {
		p.Rate = &p.GetRates()[n-1]
	}
	for _, i := range instances {
		if i.Room != room {
			continue
		}
		p.Instances++
		if p.GetVersion() == 0 || i.Version < p.GetVersion() {
			p.Version = i.Version
		}
		if !i.Alive {
			continue
		}
		p.Alive++
		s := now.instances[i.ID()].status
		switch {
		case s == nil && now.at.IsZero():
		case s == nil:
			p.Problems = append(p.Problems, string(i.ID())+": does not answer at "+i.Address)
		case s.GetNotReady() != "":
			p.Problems = append(p.Problems, string(i.ID())+": "+s.GetNotReady())
		default:
			p.Ready++
		}
		p.Held += s.GetHeld()
		if d := s.GetReserve(); d != nil && (p.GetReserve() == nil || d.AsDuration() < p.GetReserve().AsDuration()) {
			p.Reserve, p.ReserveTag = d, s.GetReserveTag()
		}
		if d := s.GetEtcdLatency(); d.AsDuration() > p.GetEtcdLatency().AsDuration() {
			p.EtcdLatency = d
		}
		if t := s.GetEtcdAwaySince(); t != nil && (p.GetEtcdAwaySince() == nil || t.AsTime().Before(p.GetEtcdAwaySince().AsTime())) {
			p.EtcdAwaySince = t
		}
	}
	slices.SortFunc(p.Problems, cmp.Compare[string])
	return p
}

// Decode implements ConsoleService.
func (s *Server) Decode(ctx context.Context, r *marchv1.DecodeRequest) (*marchv1.DecodeResponse, error) {
	return levers.Decode(ctx, s.ledger, r)
}
