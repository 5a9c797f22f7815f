package operator

import marchv1 "github.com/march-id/march/api/march/v1"

// ScarceTags returns the tags that run out first and those that have used most, and the last answer of search.
func ScarceTags(search func(*marchv1.SearchTagsRequest) (*marchv1.SearchTagsResponse, error)) (
	list []*marchv1.TagSummary, last *marchv1.SearchTagsResponse, err error) {
	const ofEach = 20
	known := make(map[string]bool)
	for _, by := range []marchv1.TagSort{marchv1.TagSort_TAG_SORT_LASTS, marchv1.TagSort_TAG_SORT_USED} {
		last, err = search(&marchv1.SearchTagsRequest{Sort: by,
			Descending: by == marchv1.TagSort_TAG_SORT_USED, PageSize: ofEach})
		if err != nil {
			return nil, nil, err
		}
		for _, t := range last.GetTags() {
			if name := t.GetTag().GetName(); !known[name] {
				known[name], list = true, append(list, t)
			}
		}
	}
	return list, last, nil
}
