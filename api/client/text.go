package client

import (
	"context"
	"errors"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/texts"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// tagText is what is known of a tag's texts: how they are written, nil where the tag has no
// format.
type tagText struct{ *texts.Text }

// setText notes the format that an answer has. It never changes, unless the tag was deleted
// and made anew.
func (t *Tag) setText(format, keyCheck string) {
	if was := t.text.Load(); was == nil || !was.Is(format, keyCheck) {
		t.text.Store(&tagText{texts.New(format, keyCheck, t.client.opts.OpaqueKeys)})
	}
}

// NextText returns an ID of a tag as a text, and the ID; see Tag.AppendNext.
func (c *Client) NextText(ctx context.Context, tag string) (text string, id int64, err error) {
	err = c.with(tag, func(t *Tag) error {
		text, id, err = t.NextText(ctx)
		return err
	})
	return text, id, err
}

// ParseText returns the ID of a text of a tag; see Tag.ParseText.
func (c *Client) ParseText(ctx context.Context, tag, text string) (id int64, err error) {
	err = c.with(tag, func(t *Tag) error {
		id, err = t.ParseText(ctx, text)
		return err
	})
	return id, err
}

// NextText returns an ID as a text, and the ID; see AppendNext.
func (t *Tag) NextText(ctx context.Context) (text string, id int64, err error) {
	var buffer [64]byte
	b, id, err := t.AppendNext(ctx, buffer[:0])
	return string(b), id, err
}

// AppendNext takes an ID, appends its text to dst, and returns both. The client writes the
// text itself, and allocates nothing where dst has room for it. Only of a tag whose key it
// does not have, it asks a room for each ID. Its errors are Next's, and Refused where the
// tag has no format or Options.OpaqueKeys has another key than the tag's. With an error it
// returns dst as it was. The id is 0 for a tag whose IDs have 80 bits: they exist only as
// texts.
func (t *Tag) AppendNext(ctx context.Context, dst []byte) (_ []byte, id int64, err error) {
	text, err := t.known(ctx)
	if err != nil {
		return dst, 0, err
	}
	if text.Lacking() {
		return t.nextOfRoom(ctx, dst)
	}
	if err := text.Usable(); err != nil { // before an ID is taken, which would be lost
		return dst, 0, t.ofText(err)
	}
	if text.Wide() {
		dst, err = t.appendWide(ctx, dst)
		return dst, 0, err
	}
	if id, err = t.Next(ctx); err != nil {
		return dst, 0, err
	}
	if dst, err = text.Append(dst, id); err != nil {
		return dst, 0, t.ofText(err)
	}
	return dst, id, nil
}

// appendWide is AppendNext of a tag whose IDs exist only as texts.
func (t *Tag) appendWide(ctx context.Context, dst []byte) ([]byte, error) {
	for {
		if d := t.timed.Load(); d != nil && d.wide {
			full, err := d.appendNext(ctx, dst, t.text.Load())
			if !errors.Is(err, error(errEnded)) {
				return full, t.ofClient(err)
			}
			continue
		} else if d != nil {
			break
		}
		if err := t.chain.Warm(ctx); err == nil {
			break
		} else if t.timed.Load() == nil {
			return dst, t.ofClient(err)
		}
	}
	return dst, allocator.Errorf(allocator.Conflict,
		"tag %s was deleted and made anew, with IDs that are numbers: retry", t.name)
}

// AppendText appends the text of an ID of the tag, of NextN for example. It asks no room.
// Its errors are Invalid, for an ID that the format has no text of, and Refused, where the
// tag has no format, the client does not have the tag's key, or no ID was taken yet.
func (t *Tag) AppendText(dst []byte, id int64) ([]byte, error) {
	text := t.text.Load()
	if text == nil {
		return dst, allocator.Errorf(allocator.Refused,
			"tag %s: its format is not known yet; take an ID, or call Warm", t.name)
	}
	dst, err := text.Append(dst, id)
	if err != nil {
		return dst, t.ofText(err)
	}
	return dst, nil
}

// ParseText returns the ID of a text of the tag. It asks a room where the client does not
// know the format, or does not have the key. Its errors are Invalid, for a text that is
// none of the tag's, Refused, as AppendNext's, NotFound and Unavailable.
func (t *Tag) ParseText(ctx context.Context, text string) (id int64, err error) {
	if known := t.text.Load(); known != nil && !known.Lacking() {
		if id, err = known.ID(text); err != nil {
			return 0, t.ofText(err)
		}
		return id, nil
	}
	_, err = t.client.pool.ask(ctx, "text of tag "+string(t.name), nil, func(ctx context.Context, e *endpoint) error {
		answer, err := e.ids.ParseText(ctx, &marchv1.ParseTextRequest{Tag: string(t.name), Text: text})
		id = answer.GetId()
		return err
	})
	return id, t.ofClient(err)
}

// known returns how the tag's IDs are texts, after a room's first answer.
func (t *Tag) known(ctx context.Context) (*tagText, error) {
	text := t.text.Load()
	if text != nil {
		return text, nil
	}
	if err := t.Warm(ctx); err != nil {
		return nil, err
	}
	if text = t.text.Load(); text == nil {
		return nil, allocator.Errorf(allocator.Internal,
			"tag %s is warm, and no room has said whether it has a format", t.name)
	}
	return text, nil
}

// nextOfRoom is AppendNext where only a room can write the text.
func (t *Tag) nextOfRoom(ctx context.Context, dst []byte) ([]byte, int64, error) {
	var answer *marchv1.NextResponse
	_, err := t.client.pool.ask(ctx, "text of tag "+string(t.name), nil,
		func(ctx context.Context, e *endpoint) (err error) {
			answer, err = e.ids.Next(ctx, &marchv1.NextRequest{Tag: string(t.name)})
			return err
		})
	if err != nil {
		return dst, 0, t.ofClient(err)
	}
	return append(dst, answer.GetText()...), answer.GetId(), nil
}

// ofText returns an error of a text with the tag's name.
func (t *Tag) ofText(err error) error {
	return allocator.Errorf(allocator.KindOf(err), "tag %s: %w", t.name, err)
}
