package console

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
)

const (
	// sampleEvery is how often instances are asked while callers ask for the overview.
	// api.RatesKept rates are kept.
	sampleEvery = time.Second
	// sampleWithin is how long an overview waits for a first sample: a page must
	// come at once, and updates follow.
	sampleWithin = 50 * time.Millisecond
	// lookWithin is how long a command waits for a sample: one instance that does not
	// answer delays a sample by askTimeout.
	lookWithin = askTimeout + time.Second
	// sampleAge is how old a sample may be.
	sampleAge = 3 * sampleEvery
)

// sample has the answers of all instances at one moment. It is immutable.
type sample struct {
	at        time.Time // when the instances were asked
	came      time.Time // when the last of them had answered
	instances map[record.InstanceID]told
	rates     map[allocator.Room][]float64 // the oldest first, the same number for each room; -1 for unknown
}

type told struct {
	status *marchv1.InstanceStatus // nil if it did not answer
	mute   time.Time               // since when it has not answered, zero if it did
	why    string                  // why it did not answer, empty if it did
	rates  []float64               // IDs per second as it remembers them, the oldest first; none if unknown
}

// rate returns the mean rate of the last api.RateOver seconds, as one second has all or nothing of what callers
// take at once; -1 for unknown.
func (t told) rate() float64 {
	if len(t.rates) == 0 {
		return -1
	}
	return mean(t.rates, api.RateOver)
}

// mean returns the mean of the last n rates, or of all if there are fewer; 0 for none.
func mean(rates []float64, n int) (mean float64) {
	last := rates[max(len(rates)-n, 0):]
	for _, rate := range last {
		mean += rate / float64(len(last))
	}
	return mean
}

// answered returns the last snapshot after waiting, for within at most, for answers that are no older than sampleAge.
// Older ones may no longer be true, so it has none then.
func (s *view) answered(ctx context.Context, within time.Duration) *snapshot {
	asked := s.wantsAnswers.ask()
	now := s.await(ctx, within, func(n *snapshot) bool {
		return time.Since(n.answers.came) <= sampleAge || n.askedAt.After(asked)
	})
	if time.Since(now.answers.came) <= sampleAge {
		return now
	}
	without := *now
	without.answers = sample{}
	return &without
}

// readAnswers asks all instances: those in etcd, or those last known while etcd does not answer. It returns the pause
// before the next time.
func (s *view) readAnswers(ctx context.Context) (pause time.Duration) {
	began, now := time.Now(), s.last.Load()
	if time.Since(now.at) > sampleAge && (now.away.IsZero() || !s.knows(now)) { // no caller has just read them
		now, _ = s.fresh(ctx)
	}
	var answers []answer
	var silent []string
	list, read := now.instances, !now.at.IsZero()
	given := !read && !now.away.IsZero() && len(s.cfg.Rooms) > 0
	if read {
		answers = s.ask(ctx, list, now.answers)
	} else if given {
		list, answers, silent = s.askGiven(ctx, now.answers)
	}
	s.publish(func(to *snapshot) {
		if to.askedAt = time.Now(); !read && !given || to.answers.at.After(began) { // or later answers overtook these
			return
		}
		to.answers = next(to.answers, list, answers, began)
		to.answers.came = to.askedAt
		if to.at.IsZero() {
			to.instances, to.silent = list, silent
		}
	})
	return max(sampleEvery-time.Since(began), sampleEvery/10)
}

// askGiven asks at the addresses of Config.Rooms. It returns the instances that answered, and the addresses at which
// none did.
func (s *view) askGiven(ctx context.Context, before sample) (found []instance, answers []answer,
	silent []string) {
	all := make([]instance, len(s.cfg.Rooms))
	for i, address := range s.cfg.Rooms {
		all[i].Address, all[i].Alive = address, true
	}
	told := s.ask(ctx, all, before)
	if s.cfg.Credentials.TLS != nil { // now that they have a name, each must prove it
		for i, a := range told {
			all[i].Room, all[i].Name = nameOf(a.is)
			all[i].Alive = a.err == nil
		}
		told = s.ask(ctx, all, before)
	}
	for i, a := range told {
		is := a.is.GetStatus()
		if is == nil {
			silent = append(silent, all[i].Address)
			continue
		}
		all[i].Room, all[i].Name = nameOf(a.is)
		all[i].Build, all[i].Version, all[i].Started = is.GetBuild(), is.GetVersion(), is.GetStarted().AsTime()
		found, answers = append(found, all[i]), append(answers, a)
	}
	return found, answers, silent
}

// nameOf returns the instance that an answer names.
func nameOf(answer *marchv1.GetInstanceResponse) (allocator.Room, allocator.Instance) {
	is := answer.GetStatus()
	return allocator.Room(is.GetRoom()), allocator.Instance(is.GetInstance())
}

// answer is an instance's own status, or why it told none.
type answer = reply[*marchv1.GetInstanceResponse]

// next returns the sample that follows before. If before is missing or old, the
// past rates come from the instances, which remember them. So a console that just
// started shows the same rates as others.
func next(before sample, instances []instance, answers []answer, at time.Time) sample {
	now := sample{at: at, instances: make(map[record.InstanceID]told, len(instances)), rates: maps.Clone(before.rates)}
	if now.rates == nil {
		now.rates = make(map[allocator.Room][]float64)
	}
	for i, instance := range instances {
		t := told{status: answers[i].is.GetStatus(), rates: answers[i].is.GetRates()}
		was := before.instances[instance.ID()]
		if t.status == nil {
			t.why = whyOf(answers[i].err)
			if t.mute = at; !was.mute.IsZero() && at.Sub(before.at) < 2*problemsEvery { // it was asked all the time
				t.mute = was.mute
			}
		}
		now.instances[instance.ID()], now.rates[instance.Room] = t, before.rates[instance.Room]
	}
	// A second without a measurement takes a place in the lists, too, so that places are seconds.
	added, length := 1, 0 // length is that of each room's past rates
	if !before.at.IsZero() {
		added = min(max(int((at.Sub(before.at)+sampleEvery/2)/sampleEvery), 1), api.RatesKept+1)
	}
	for _, list := range before.rates {
		length = len(list)
	}
	for _, a := range answers {
		if before.at.IsZero() {
			length = max(length, len(a.is.GetRates())-1)
		}
	}
	for room, list := range now.rates {
		list = slices.Concat(list, lately(room, instances, answers, added+length-len(list)))
		now.rates[room] = list[max(len(list)-api.RatesKept, 0):]
	}
	return now
}

// lately returns the last n rates of a room as its instances remember them; -1 where none does: a silent one may issue
// all the same.
func lately(room allocator.Room, instances []instance, answers []answer, n int) []float64 {
	list := slices.Repeat([]float64{-1}, n)
	for i, instance := range instances {
		if instance.Room != room {
			continue
		}
		own := answers[i].is.GetRates()
		for k := range n {
			if at := len(own) - n + k; at >= 0 {
				list[k] = max(list[k], 0) + own[at]
			}
		}
	}
	return list
}

// ask asks instances for their status. It also asks
// silent instances: while etcd takes no writes no instance sends heartbeats, and they still
// answer. Of the silent instances that did not answer before it asks few, so that they do not
// delay the sample. An answer of another instance, which may have the address since, is none: it would be taken for
// that of a dead one.
func (s *view) ask(ctx context.Context, instances []instance, before sample) []answer {
	answers := askEach(ctx, s.rooms, instances, s.asked(instances, before), askTimeout,
		func(ctx context.Context, to marchv1.RoomServiceClient) (*marchv1.GetInstanceResponse, error) {
			return to.GetInstance(ctx, &marchv1.GetInstanceRequest{})
		})
	for i, asked := range instances {
		if room, name := nameOf(answers[i].is); answers[i].err == nil && asked.Name != "" &&
			(room != asked.Room || name != asked.Name) {
			answers[i] = answer{err: fmt.Errorf("instance %s/%s answers there", room, name)}
		}
	}
	return answers
}

// whyOf says in words for operators why an instance did not answer, without the words of gRPC.
func whyOf(err error) string {
	if status.Code(err) == codes.DeadlineExceeded && !strings.Contains(err.Error(), "connection error") {
		return fmt.Sprintf("no answer within %v", askTimeout)
	}
	return allocator.ConnectionText(status.Convert(err).Message())
}

func (s *problems) GetOverview(ctx context.Context,
	_ *marchv1.GetOverviewRequest) (*marchv1.GetOverviewResponse, error) {
	_, outage, err := s.shown(ctx)
	if err != nil {
		return nil, err
	}
	now := s.answered(ctx, sampleWithin)
	f := s.findings(now, outage)
	f.unreadable = s.withTags(ctx, f.unreadable)
	if outage != nil && now.Layout.Layout.Version == 0 { // it is not known that there is none
		f.unusable = nil
	}
	answer := &marchv1.GetOverviewResponse{
		Layout: recordToProto(now.Layout), Cluster: now.UUID, Ever: names(now.Layout.Ever), Halt: f.halt,
		Problem: textOf(now.Unusable), Unreadable: passedOver(now.Bad), Migration: f.migration,
		Problems: s.met.Note(f.problems(), time.Now()), NewestFormats: record.Formats,
		AsOf: problem.Stamp(now.answers.came),
	}
	if now.Settings != nil {
		answer.Settings = clusterToProto(*now.Settings)
	}
	rooms := now.Layout.Layout.Rooms()
	for _, i := range now.instances {
		if !slices.Contains(rooms, i.Room) {
			rooms = append(rooms, i.Room)
		}
	}
	for _, room := range rooms {
		var held *marchv1.Range
		if r, ok := now.Layout.Layout.Ranges[room]; ok {
			held = &marchv1.Range{Lower: r.Lower, Upper: r.Upper}
		}
		answer.Rooms = append(answer.Rooms, f.roomStatus(room, held))
	}
	return answer, nil
}

// roomStatus combines the answers of a room's instances.
func (f findings) roomStatus(room allocator.Room, r *marchv1.Range) *marchv1.RoomStatus {
	now := f.sample
	p := &marchv1.RoomStatus{Name: string(room), Range: r, RateEvery: durationpb.New(sampleEvery),
		Rates: now.rates[room]}
	for _, i := range f.instances {
		if i.Room != room {
			continue
		}
		p.Instances++
		t := now.instances[i.ID()]
		if len(t.rates) == 0 && !now.at.IsZero() {
			p.Unmeasured = append(p.Unmeasured, string(i.ID()))
		}
		if i.Unreadable == nil && (p.GetVersion() == 0 || i.Version < p.GetVersion()) {
			p.Version = i.Version
		}
		if !now.up(i) {
			continue
		}
		p.Alive++
		s := t.status
		if len(t.rates) > 0 {
			p.Rate = proto.Float64(p.GetRate() + t.rate())
		}
		switch {
		case s == nil && now.at.IsZero():
		case s == nil || s.GetNotReady() != "":
			for _, wrong := range f.instanceProblemsOf(i) {
				p.Problems = append(p.Problems, wrong.GetWhat())
			}
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
		if t := s.GetEtcdAwaySince(); t != nil && (p.GetEtcdAwaySince() == nil ||
			t.AsTime().Before(p.GetEtcdAwaySince().AsTime())) {
			p.EtcdAwaySince = t
		}
	}
	slices.Sort(p.Problems)
	p.Problems = slices.Compact(p.Problems)
	return p
}
