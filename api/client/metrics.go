package client

import (
	"cmp"
	"slices"
)

// Metric is a metric of each tag of a client.
type Metric struct {
	Name, Help string
	Counter    bool // it only grows while the client has the tag in memory
	Of         func(Status) float64
}

// Metrics returns the metrics of each tag of a client, for what exports them: see packages clientprom and clientotel.
// The IDs of time-ordered tags are not counted.
func Metrics() []Metric {
	return []Metric{
		{"march_client_ids_issued_total", "IDs that the client issued.", true,
			func(s Status) float64 { return float64(s.Issued) }},
		{"march_client_ids_dropped_total", "IDs that were leased and will never be issued.", true,
			func(s Status) float64 { return float64(s.Dropped) }},
		{"march_client_ids_held", "IDs in memory.", false, func(s Status) float64 { return float64(s.Held) }},
		{"march_client_reserve_seconds", "How long the IDs in memory last at the recent peak rate, or how long the " +
			"window of a time-ordered tag is.", false, func(s Status) float64 { return s.Lasts.Seconds() }},
		{"march_client_leases_total", "Segments that rooms leased.", true,
			func(s Status) float64 { return float64(s.Refills) }},
		{"march_client_waits_total", "Calls that found no ID in memory.", true,
			func(s Status) float64 { return float64(s.Waits) }},
		{"march_client_failing", "1 while leases of this tag alone fail.", false, func(s Status) float64 {
			if s.Failure != nil {
				return 1
			}
			return 0
		}},
	}
}

// Status returns what the client holds of each tag in memory, in the order of their names.
func (c *Client) Status() []Status {
	var all []Status
	for _, t := range c.tags() {
		all = append(all, t.Status())
	}
	slices.SortFunc(all, func(a, b Status) int { return cmp.Compare(a.Tag, b.Tag) })
	return all
}
