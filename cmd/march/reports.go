package main

import (
	"time"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/ledger/mirror"
	"github.com/march-id/march/allocator/ledger/record"
	"github.com/march-id/march/allocator/ledger/recovery"
	"github.com/march-id/march/allocator/ledger/verify"
	"github.com/march-id/march/allocator/timeid"
)

// recoverReport is what a recover did, or would do.
func recoverReport(r *recovery.Report) any {
	type missing struct {
		ID          string `json:"id"`
		Incarnation string `json:"incarnation"`
		Why         string `json:"why"`
		Without     bool   `json:"without"`
		Beat        string `json:"last_heartbeat,omitempty"`
	}
	type saw struct {
		Name    string        `json:"name"`
		Views   []mirror.View `json:"views"`
		Problem string        `json:"problem,omitempty"`
	}
	out := struct {
		UUID       string              `json:"uuid"`
		Done       bool                `json:"done"`
		Answered   []record.InstanceID `json:"answered"`
		LeftBefore []record.InstanceID `json:"left_before"`
		Missing    []missing           `json:"missing"`
		Unreadable []string            `json:"unreadable"`
		AtLimit    []allocator.Tag     `json:"at_limit"`
		Beyond     []allocator.Tag     `json:"beyond_period"`
		Margin     int64               `json:"margin_steps,string"`
		Total      int64               `json:"margin_total,string"`
		Higher     int64               `json:"higher,string"`
		Raised     int64               `json:"raised,string"`
		Stored     int64               `json:"stored_layout_version,string"`
		Known      int64               `json:"known_layout_version,string"`
		Version    int64               `json:"layout_version,string"`
		Halted     float64             `json:"halted_seconds"`
		Epoch      string              `json:"epoch"`
		NotBefore  string              `json:"not_before"`
		Waits      string              `json:"waits"` // for what windows wait until not_before
		Mirrors    []saw               `json:"mirrors"`
		Jumps      []string            `json:"jumps"`
	}{
		r.UUID, r.Epoch != "", append([]record.InstanceID{}, r.Answered...),
		append([]record.InstanceID{}, r.LeftBefore...), []missing{},
		[]string{}, append([]allocator.Tag{}, r.AtLimit...), append([]allocator.Tag{}, r.BeyondPeriod...), r.Margin,
		r.Total, r.Higher, r.Raised,
		r.Stored.Layout.Version, r.Known.Version, r.Layout.Version, r.Halted.Seconds(), r.Epoch, "",
		r.Waits, []saw{}, append([]string{}, r.Jumps...),
	}
	for _, m := range r.Mirrors {
		s := saw{Name: m.Name, Views: append([]mirror.View{}, m.Views...)}
		if m.Err != nil {
			s.Problem = m.Err.Error()
		}
		out.Mirrors = append(out.Mirrors, s)
	}
	if !r.NotBefore.IsZero() {
		out.NotBefore = r.NotBefore.UTC().Format(timeid.Format)
	}
	for _, key := range r.Unreadable {
		out.Unreadable = append(out.Unreadable, key.Error())
	}
	for _, m := range r.Missing {
		beat := ""
		if !m.Beat.IsZero() {
			beat = m.Beat.UTC().Format(timeid.Format)
		}
		out.Missing = append(out.Missing, missing{string(m.ID), m.Incarnation, m.Why, m.Without, beat})
	}
	return out
}

func verifyReport(r verify.Report) any {
	problems := r.Problems
	if problems == nil {
		problems = []string{}
	}
	type halt struct {
		By   string    `json:"by"`
		Why  string    `json:"why"`
		Time time.Time `json:"time"`
	}
	var halted *halt
	if r.Halt.By != "" {
		halted = &halt{r.Halt.By, r.Halt.Why, r.Halt.Time}
	}
	return struct {
		Layouts   int64    `json:"layouts,string"`
		Rooms     int64    `json:"rooms,string"`
		Tags      int64    `json:"tags,string"`
		Marks     int64    `json:"marks,string"`
		Eras      int64    `json:"eras,string"`
		Instances int64    `json:"instances,string"`
		Problems  []string `json:"problems"`
		More      int64    `json:"more,string"`
		Halt      *halt    `json:"halt"`

		JournalRequired bool                `json:"journal_required"`
		Unconfirmed     []record.InstanceID `json:"unconfirmed"`
	}{
		r.Layouts, r.Rooms, r.Tags, r.Marks, r.Eras, r.Instances, problems, r.More, halted,
		bool(r.Settings.RequireJournal), append([]record.InstanceID{}, r.Unconfirmed...),
	}
}
