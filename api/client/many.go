package client

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/texts"
	"github.com/march-id/march/api"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// TagCount is how many IDs of a tag NextMany takes.
type TagCount struct {
	Tag   string
	Count int64 // from 1; of a time-ordered tag at most what one worker has in a second
}

// TagIDs are IDs of a tag.
type TagIDs struct {
	Tag   string
	IDs   []int64
	Texts []string // of the IDs, in their order; nil where the tag has no format
}

// NextMany returns IDs of several tags, in the order of wanted: of an order, its snapshot
// and its items, say. It takes 1 to 100 tags, each named once, together at most 10,000 IDs.
// The client issues the IDs itself. If it lacks the opaque key of one of the tags, or one has
// a strict order, a room issues all of them in one call.
//
// Before it takes the first ID it checks the request, and that each tag has enough IDs. If
// a tag fails nevertheless, the IDs that it took of the tags before are skipped, and the
// error says how many. Its errors name the tag. They are Next's, Invalid, and Refused as
// AppendNext's.
func (c *Client) NextMany(ctx context.Context, wanted ...TagCount) ([]TagIDs, error) {
	request := &marchv1.NextManyRequest{Tags: make([]*marchv1.TagCount, len(wanted))}
	for i, w := range wanted {
		request.Tags[i] = &marchv1.TagCount{Tag: w.Tag, Count: w.Count}
	}
	if err := api.CheckMany(request); err != nil {
		return nil, err
	}
	ofRoom := false
	for i, w := range wanted {
		lacks, err := with(c, w.Tag, func(t *Tag) (bool, error) { return t.prepare(ctx, w.Count) })
		if err != nil {
			return nil, ofMany(i, w.Tag, err)
		}
		ofRoom = ofRoom || lacks
	}
	if ofRoom {
		return c.manyOfRoom(ctx, request)
	}
	all, taken := make([]TagIDs, len(wanted)), int64(0)
	for i, w := range wanted {
		var err error
		if all[i], err = with(c, w.Tag, func(t *Tag) (TagIDs, error) { return t.take(ctx, w.Count) }); err != nil {
			return nil, api.Skipped(ofMany(i, w.Tag, err), taken)
		}
		taken += w.Count
	}
	return all, nil
}

// ofMany returns the error of a tag with its place. The end of the client concerns no tag.
func ofMany(i int, tag string, err error) error {
	if errors.Is(err, error(ErrClosed)) {
		return err
	}
	return api.InMany(i, tag, err)
}

// prepare returns when n IDs can be taken, as far as that can be known, and reports whether a room is to issue them:
// because the client lacks the key of their texts, or the tag has a strict order.
func (t *Tag) prepare(ctx context.Context, n int64) (ofRoom bool, err error) {
	text, err := t.known(ctx)
	if err != nil || text == nil || text.Lacking() {
		return err == nil, err
	}
	if text.Text != nil {
		if err := text.Usable(); err != nil {
			return false, t.ofText(err)
		}
	}
	return byKind(t, func() (bool, error) {
		return leased(t, func() (bool, error) { return false, t.chain.WarmN(ctx, n) },
			func() (bool, error) { return true, nil })
	}, func(d *timed) (bool, error) {
		if d.wide {
			return false, t.ofText(texts.ErrNoNumber)
		}
		return false, d.checkCount(n)
	})
}

// take takes n IDs, with their texts where the tag has a format.
func (t *Tag) take(ctx context.Context, n int64) (taken TagIDs, err error) {
	runs, err := t.NextN(ctx, n, nil)
	if err != nil {
		return taken, err
	}
	taken = TagIDs{Tag: string(t.name), IDs: make([]int64, 0, n)}
	taken.IDs = slices.AppendSeq(taken.IDs, runs.IDs())
	if text := t.text.Load(); text != nil {
		if taken.Texts, err = text.OfRuns(runs); err != nil {
			return taken, t.ofText(err)
		}
	}
	return taken, nil
}

// manyOfRoom lets a room issue all IDs.
func (c *Client) manyOfRoom(ctx context.Context, request *marchv1.NextManyRequest) (all []TagIDs, err error) {
	_, err = ask(ctx, c.pool, fmt.Sprintf("IDs of %d tags", len(request.GetTags())), marchv1.IDServiceClient.NextMany,
		request, func(answer *marchv1.NextManyResponse) (err error) {
			all, err = idsOf(request, answer)
			return err
		})
	if err != nil && c.closed() {
		return nil, ErrClosed
	}
	return all, err
}

// idsOf returns the IDs of a room's answer, which must be what was asked for.
func idsOf(request *marchv1.NextManyRequest, answer *marchv1.NextManyResponse) ([]TagIDs, error) {
	all := make([]TagIDs, len(request.GetTags()))
	if n := len(answer.GetTags()); n != len(all) {
		return nil, allocator.Errorf(allocator.Internal,
			"its answer makes no sense: IDs of %d tags; %d were asked for", n, len(all))
	}
	for i, asked := range request.GetTags() {
		given := answer.GetTags()[i]
		if n := int64(len(given.GetIds())); given.GetTag() != asked.GetTag() || n != asked.GetCount() {
			return nil, allocator.Errorf(allocator.Internal,
				"its answer makes no sense: tags[%d]: %d IDs of %s; asked for: %d of %s",
				i, n, given.GetTag(), asked.GetCount(), asked.GetTag())
		}
		all[i].Tag = asked.GetTag()
		for _, one := range given.GetIds() {
			all[i].IDs = append(all[i].IDs, one.GetId())
			if one.GetText() != "" {
				all[i].Texts = append(all[i].Texts, one.GetText())
			}
		}
	}
	return all, nil
}
