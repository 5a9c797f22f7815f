package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	marchv1 "github.com/march-id/march/api/march/v1"
	"github.com/march-id/march/internal/problem"
)

var sentAt = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// facts returns what a process of a healthy cluster tells.
func facts(process string, change func(*marchv1.DiagnoseResponse)) processAnswer {
	free := int64(10 << 30)
	got := &marchv1.DiagnoseResponse{
		Build: "v1", Clock: timestamppb.New(sentAt.Add(10 * time.Millisecond)),
		Etcd: &marchv1.EtcdStatus{
			Version: "3.6.9", Size: 3 << 20, Quota: 2 << 30, Revision: 1000, Compacted: 400,
			Latency:    durationpb.New(2 * time.Millisecond),
			ClockAhead: durationpb.New(-400 * time.Millisecond), ClockUnsure: durationpb.New(1001 * time.Millisecond),
		},
		Certificates: []*marchv1.CertificateStatus{{Setting: "etcd-cert", Path: "/c", Subject: "CN=march",
			Ends: timestamppb.New(sentAt.Add(100 * 24 * time.Hour))}},
		Journal: &marchv1.JournalStatus{Path: "/j", Free: &free, Sync: durationpb.New(time.Millisecond)},
	}
	if change != nil {
		change(got)
	}
	return processAnswer{Process: process, Sent: sentAt, Took: 10 * time.Millisecond, Got: got}
}

// threeProcesses returns the facts of three processes, of which the last differs.
func threeProcesses(change func(*marchv1.DiagnoseResponse)) doctorFacts {
	return doctorFacts{
		Overview: &marchv1.GetOverviewResponse{},
		Answers:  []processAnswer{facts("the console", nil), facts("a/one", nil), facts("a/two", change)},
	}
}

func TestDoctorOfHealthyCluster(t *testing.T) {
	found := examine(threeProcesses(nil))
	if n := wrongOf(found); n != 0 {
		t.Errorf("%d wrong in a healthy cluster: %+v", n, found)
	}
	for _, check := range []string{"problems", "etcd version", "etcd quota", "etcd compaction", "etcd latency",
		"etcd clock", "clocks", "certificates", "journal", "versions", "tags"} {
		if !slices.ContainsFunc(found, func(f verdict) bool { return f.Check == check }) {
			t.Errorf("nothing is said of %s", check)
		}
	}
}

// Which rooms do not reach all shards of the callers, where the operator says how many there are.
func TestDoctorShards(t *testing.T) {
	f := threeProcesses(nil)
	f.Overview.Layout = &marchv1.LayoutRecord{Layout: &marchv1.Layout{Version: 1, Boundary: 1000,
		Rooms: map[string]*marchv1.Range{"a": {Lower: 0, Upper: 500}, "b": {Lower: 500, Upper: 1000}}}}
	for shards, want := range map[int64][]string{0: nil, 100: {"ok each room reaches all 100 shards evenly"},
		1000: {"warning room a reaches 500 of 1000 shards", "warning room b reaches 500 of 1000 shards"}} {
		f.Shards = shards
		var got []string
		for _, found := range examine(f) {
			if found.Check == "shards" {
				what, _, _ := strings.Cut(found.What, " by id mod")
				got = append(got, found.Level+" "+what)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d shards: %q, want %q", shards, got, want)
		}
	}
}

func TestDoctorFindings(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*marchv1.DiagnoseResponse)
		check  string
		level  string
		what   string
	}{
		{"etcd is away", func(d *marchv1.DiagnoseResponse) {
			d.Etcd = &marchv1.EtcdStatus{Error: "refused"}
		}, "etcd", levelFailed, "etcd does not answer a/two: refused"},
		{"etcd is old", func(d *marchv1.DiagnoseResponse) {
			d.Etcd.Version = "3.5.1"
		}, "etcd version", levelWarning, "3.5.1, 3.6.9"},
		{"etcd is full", func(d *marchv1.DiagnoseResponse) {
			d.Etcd.NoSpace = true
		}, "etcd quota", levelFailed, "its alarm NOSPACE is raised"},
		{"etcd says no quota", func(d *marchv1.DiagnoseResponse) {
			d.Etcd.Quota = 0
		}, "etcd quota", levelUnknown, "3 MiB"},
		{"etcd is not compacted", func(d *marchv1.DiagnoseResponse) {
			d.Etcd.Revision = 9_000_000
		}, "etcd compaction", levelWarning, "8999600 revisions"},
		{"etcd is slow", func(d *marchv1.DiagnoseResponse) {
			d.Etcd.Latency = durationpb.New(200 * time.Millisecond)
		}, "etcd latency", levelWarning, "200ms to answer a/two"},
		{"etcd is stuck", func(d *marchv1.DiagnoseResponse) {
			d.Etcd.Latency = durationpb.New(2 * time.Second)
		}, "etcd latency", levelFailed, "2s to answer a/two"},
		{"etcd's clock is ahead", func(d *marchv1.DiagnoseResponse) {
			d.Etcd.ClockAhead = durationpb.New(2 * time.Second)
		}, "etcd clock", levelWarning, "etcd's clock is 2s ahead of that of a/two"},
		{"etcd's clock is behind", func(d *marchv1.DiagnoseResponse) {
			d.Etcd.ClockAhead = durationpb.New(-time.Hour)
		}, "etcd clock", levelWarning, "etcd's clock is 1h0m0s behind that of a/two"},
		{"etcd's clock may be right", func(d *marchv1.DiagnoseResponse) {
			d.Etcd.ClockAhead = durationpb.New(1400 * time.Millisecond)
		}, "etcd clock", levelOK, "those of 3 processes"},
		{"etcd's clock is not known", func(d *marchv1.DiagnoseResponse) {
			d.Etcd.ClockAhead, d.Etcd.ClockError = nil, "no Date"
		}, "etcd clock", levelUnknown, "not known to a/two: no Date"},
		{"the clock is ahead", func(d *marchv1.DiagnoseResponse) {
			d.Clock = timestamppb.New(sentAt.Add(3 * time.Second))
		}, "clocks", levelWarning, "a/two is 2.99s ahead of"},
		{"the clock is behind", func(d *marchv1.DiagnoseResponse) {
			d.Clock = timestamppb.New(sentAt.Add(-time.Minute))
		}, "clocks", levelFailed, "a/two is 1m0.01s behind"},
		{"the disk is slow", func(d *marchv1.DiagnoseResponse) {
			d.Journal.Sync = durationpb.New(150 * time.Millisecond)
		}, "journal", levelWarning, "a/two took 150ms"},
		{"the disk is full", func(d *marchv1.DiagnoseResponse) {
			*d.Journal.Free = 1 << 20
		}, "journal", levelWarning, "a/two has 1 MiB left"},
		{"the disk is broken", func(d *marchv1.DiagnoseResponse) {
			d.Journal.Error = "read-only"
		}, "journal", levelFailed, "a/two takes no write: read-only"},
		{"a certificate ends soon", func(d *marchv1.DiagnoseResponse) {
			d.Certificates[0].Ends = timestamppb.New(sentAt.Add(20 * 24 * time.Hour))
		}, "certificates", levelWarning, "/c (--etcd-cert of a/two) ends in 19 days: CN=march"},
		{"a certificate ends at once", func(d *marchv1.DiagnoseResponse) {
			d.Certificates[0].Ends = timestamppb.New(sentAt.Add(30 * time.Hour))
		}, "certificates", levelFailed, "/c (--etcd-cert of a/two) ends in 29 hours: CN=march"},
		{"a certificate has ended", func(d *marchv1.DiagnoseResponse) {
			d.Certificates[0].Ends = timestamppb.New(sentAt)
		}, "certificates", levelFailed, "ended at 2030-01-02T03:04:05Z"},
		{"a certificate is gone", func(d *marchv1.DiagnoseResponse) {
			d.Certificates[0].Error = "no such file"
		}, "certificates", levelFailed, "cannot be read: no such file"},
		{"two versions", func(d *marchv1.DiagnoseResponse) {
			d.Build = "v2"
		}, "versions", levelWarning, "v1 (a/one, the console), v2 (a/two)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			found := examine(threeProcesses(test.change))
			at := slices.IndexFunc(found, func(f verdict) bool {
				return f.Check == test.check && f.Level == test.level
			})
			if at < 0 || !strings.Contains(found[at].What, test.what) ||
				(found[at].Remedy == "") != (test.level == levelOK) {
				t.Errorf("want %s of %s with %q and a remedy; found %+v", test.level, test.check, test.what, found)
			}
		})
	}
}

// All processes see alike: an etcd that is too old, and one that has nearly reached its quota
// or has reached it.
func TestDoctorLevelsOfEtcd(t *testing.T) {
	for _, test := range []struct {
		name    string
		version string
		problem marchv1.ProblemKind
		check   string
		level   string
		what    string
	}{
		{"too old", "3.6.8", 0, "etcd version", levelFailed, "etcd 3.6.8 is not supported"},
		{"new enough", "3.6.9", 0, "etcd version", levelOK, "etcd is 3.6.9"},
		{"nearly full", "3.6.9", marchv1.ProblemKind_PROBLEM_KIND_ETCD_NEARLY_FULL, "problems",
			levelWarning, "as listed"},
		{"full", "3.6.9", marchv1.ProblemKind_PROBLEM_KIND_ETCD_FULL, "problems", levelFailed, "as listed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := threeProcesses(nil)
			if test.problem != 0 {
				f.Overview.Problems = []*marchv1.Problem{{Kind: test.problem, What: "as listed", Remedy: "Do."}}
			}
			for _, a := range f.Answers {
				a.Got.Etcd.Version = test.version
			}
			found := examine(f)
			if !slices.ContainsFunc(found, func(f verdict) bool {
				return f.Check == test.check && f.Level == test.level && strings.Contains(f.What, test.what)
			}) {
				t.Errorf("want %s of %s with %q; found %+v", test.level, test.check, test.what, found)
			}
		})
	}
}

func TestDoctorProblemsAndTags(t *testing.T) {
	f := threeProcesses(nil)
	f.Overview.Problems = []*marchv1.Problem{
		{Kind: marchv1.ProblemKind_PROBLEM_KIND_SILENT, What: "instance a/x is silent", Since: timestamppb.New(sentAt),
			Command: "march instance forget a x"},
		{Kind: marchv1.ProblemKind_PROBLEM_KIND_HALTED, What: "leasing is halted", Remedy: "Recover.",
			Command: "march recover"},
	}
	f.Tags = []*marchv1.TagSummary{
		{Tag: &marchv1.Tag{Name: "fresh"}, Used: 0.1, Lasts: durationpb.New(9000 * time.Hour)},
		{Tag: &marchv1.Tag{Name: "soon"}, Used: 0.1, Lasts: durationpb.New(48 * time.Hour)},
		{Tag: &marchv1.Tag{Name: "used"}, Used: 0.85},
		{Tag: &marchv1.Tag{Name: "out"}, Used: 0.995},
	}
	f.Answers = append(f.Answers, processAnswer{Process: "b/away", Err: errors.New("no route")})
	var got []string
	for _, finding := range examine(f) {
		if finding.Level != levelOK {
			got = append(got, finding.Level+" "+strings.Join(strings.Fields(finding.What)[:3], " "))
		}
	}
	want := []string{
		"failed leasing is halted", "failed tag out has", "warning instance a/x is", "warning tag soon has",
		"warning tag used has", "unknown b/away was not",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A full period needs no higher limit: the next one begins by itself. How long it lasts at the
// present rate means nothing.
func TestDoctorTagsWithAPeriod(t *testing.T) {
	f := threeProcesses(nil)
	daily := &marchv1.Period{Unit: marchv1.PeriodUnit_PERIOD_UNIT_DAY, Digits: 4, Current: "2026-11-25",
		Ends: timestamppb.New(time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC))}
	f.Tags = []*marchv1.TagSummary{
		{Tag: &marchv1.Tag{Name: "full", Period: daily}, Used: 1},
		{Tag: &marchv1.Tag{Name: "fresh", Period: daily}, Used: 0.1, Lasts: durationpb.New(time.Hour)},
	}
	var got []verdict
	for _, finding := range examine(f) {
		if finding.Check == "tags" {
			got = append(got, finding)
		}
	}
	want := []verdict{{
		Check: "tags", Level: levelFailed, What: "tag full has used 100.0% of the IDs of the period 2026-11-25",
		Remedy: "The next period begins at 2026-11-26T00:00:00Z. If that is too late, create a tag with more digits, " +
			"and move the callers there.",
		Command: "march tag create TAG --period day --period-digits DIGITS",
	}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// What a listed problem explains is no finding of its own. Nor is its check well: doctor does not say that clocks agree
// of which one is off.
func TestDoctorSaysOfOneCauseOnce(t *testing.T) {
	const of = "a/two"
	for check, test := range map[string]struct {
		listed *marchv1.Problem
		change func(*marchv1.DiagnoseResponse)
	}{
		"clocks": {problem.New(problem.ClockAhead, of, sentAt), func(d *marchv1.DiagnoseResponse) {
			d.Clock = timestamppb.New(sentAt.Add(time.Hour))
		}},
		"etcd": {problem.New(problem.EtcdPassword, of, sentAt), func(d *marchv1.DiagnoseResponse) {
			d.Etcd = &marchv1.EtcdStatus{Error: "authentication failed"}
		}},
		"tags": {problem.New(problem.TagUsedUp, "small", sentAt), nil},
	} {
		f := threeProcesses(test.change)
		f.Tags = []*marchv1.TagSummary{{Tag: &marchv1.Tag{Name: "small"}, Used: 1}}
		if test.change != nil {
			f.Tags = nil
		}
		f.Overview.Problems = []*marchv1.Problem{test.listed}
		for _, found := range examine(f) {
			if found.Check == check || check == "etcd" && found.Check == "etcd latency" {
				t.Errorf("%s, beside %q: %s: %s", check, test.listed.GetKind(), found.Level, found.What)
			}
		}
	}
}

func TestBundleHasNoSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"dial https://root:s3cret@etcd:2379: refused": "dial https://hidden@etcd:2379: refused",
		"Authorization: Bearer abc.def":               "Authorization: Bearer hidden",
		`{"password": "s3cret", "name":"password"}`:   `{"password": "hidden", "name":"password"}`,
		"token=abc&x=1": "token=hidden&x=1",
		`"name": "tinyid-tokens", "value": "/etc/tokens"`: `"name": "tinyid-tokens", "value": "/etc/tokens"`,
		`"what": "tag secret has used 80% of its IDs"`:    `"what": "tag secret has used 80% of its IDs"`,
		"march_chain_issued_ids_total{tag=\"order\"} 5":   "march_chain_issued_ids_total{tag=\"order\"} 5",
	} {
		if got := scrub(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
