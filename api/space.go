package api

import marchv1 "github.com/march-id/march/api/march/v1"

// Space returns the first ID of a tag and the end of its IDs, exclusive: of a tag with a
// period, those of the period that is now.
func Space(t *marchv1.Tag) (start, limit int64) {
	if p := t.GetPeriod(); p != nil {
		return max(t.GetStart(), t.GetSkip(), p.GetFirst()), min(t.GetLimit(), p.GetEnd())
	}
	return max(t.GetStart(), t.GetSkip()), t.GetLimit()
}
