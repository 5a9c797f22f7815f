// Package texts has the texts of a tag's IDs, as rooms, consoles, the command line and
// the Go client need them: the tag's format together with the keys that a process has.
// It holds a key against the check value that the tag has, so that no process writes
// texts of another key.
package texts

import (
	"runtime"
	"sync"
	"weak"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/allocator/timeid"
)

// Text is how the IDs of a tag are texts. It does not change. A nil Text is that of a tag
// without a format.
type Text struct {
	description, keyCheck string
	format                *format.Format
	wrong                 error // why there are no texts here
	lacking               bool  // another process may have what this one lacks
}

// errNone is what a tag without a format has in the place of texts.
var errNone = &allocator.Error{Kind: allocator.Refused,
	Msg: "the tag has no format, and its IDs are no texts; a tag gets its format when it is created"}

// New returns the texts of a tag with a format and the check value of its key: nil where
// both are empty.
func New(description, keyCheck string, keys []format.Key) *Text {
	if description == "" {
		return nil
	}
	t := &Text{description: description, keyCheck: keyCheck}
	var err error
	if t.format, err = format.Parse(description, keys...); err != nil {
		t.wrong = allocator.Errorf(allocator.Refused,
			"the tag's format is not one of this release, so there are no texts here: %w", err)
		t.lacking = true
		return t
	}
	name := t.format.Key()
	if name == "" {
		return t
	}
	t.wrong = allocator.Errorf(allocator.Refused, "the tag's texts need the key %s, which is not here; give its file: "+
		"--opaque-key %s=FILE, or OpaqueKeys in the Go client", name, name)
	t.lacking = true
	for _, k := range keys {
		if k.Name() != name {
			continue
		}
		t.wrong, t.lacking = nil, false
		if k.CheckValue() != keyCheck {
			t.wrong = allocator.Errorf(allocator.Refused,
				"the key %s here is another than the tag's: its check value is %s, the tag's %s; "+
					"give the file with which the tag was created", name, k.CheckValue(), keyCheck)
		}
	}
	return t
}

// Description returns the description of the format, and the check value of its key.
func (t *Text) Description() (description, keyCheck string) {
	if t == nil {
		return "", ""
	}
	return t.description, t.keyCheck
}

// Usable returns why no text can be written or read, nil where they can. It is asked before
// an ID is taken, which would be lost. Its error is Refused.
func (t *Text) Usable() error {
	if t == nil {
		return errNone
	}
	return t.wrong
}

// Lacking reports whether this process lacks the key, or the release, that another process
// may have. A process with another key is not lacking: it must not go on.
func (t *Text) Lacking() bool { return t != nil && t.lacking }

// Is reports whether a tag's format and check value are t's.
func (t *Text) Is(description, keyCheck string) bool {
	d, k := t.Description()
	return d == description && k == keyCheck
}

// Append appends the text of an ID, and allocates nothing where dst has room for it. With
// an error it returns dst as it was.
func (t *Text) Append(dst []byte, id int64) ([]byte, error) {
	if err := t.Usable(); err != nil {
		return dst, err
	}
	return t.format.Append(dst, format.Value{ID: id})
}

// Of returns the text of an ID; empty for a tag without a format.
func (t *Text) Of(id int64) (string, error) {
	if t == nil {
		return "", nil
	}
	var buffer [64]byte
	text, err := t.Append(buffer[:0], id)
	return string(text), err
}

// OfRuns returns the texts of all IDs of runs; none for a tag without a format.
func (t *Text) OfRuns(runs []allocator.Run) ([]string, error) {
	if t == nil {
		return nil, nil
	}
	var all []string
	for _, run := range runs {
		for i := range run.Count {
			text, err := t.Of(run.First + i*max(run.Stride, 1))
			if err != nil {
				return nil, err
			}
			all = append(all, text)
		}
	}
	return all, nil
}

// Wide reports whether the texts are of time, worker and sequence of 80 bits, which are no
// number: AppendParts and Parts then take the place of Append and ID.
func (t *Text) Wide() bool { return t != nil && t.format != nil && t.format.Domain().Parts }

// AppendParts is Append of a Wide text.
func (t *Text) AppendParts(dst []byte, parts timeid.Parts) ([]byte, error) {
	if err := t.Usable(); err != nil {
		return dst, err
	}
	return t.format.Append(dst, format.Value{Parts: parts})
}

// Parts returns the parts of a Wide text. Its errors are ID's.
func (t *Text) Parts(text string) (timeid.Parts, error) {
	if err := t.Usable(); err != nil {
		return timeid.Parts{}, err
	}
	v, err := t.format.ParseText(text)
	return v.Parts, err
}

// OfParts returns the Wide texts of runs that a generator issued.
func (t *Text) OfParts(g *timeid.Generator, runs []allocator.Run) ([]string, error) {
	var all []string
	var buffer [64]byte
	for _, run := range runs {
		for k := range run.Count {
			text, err := t.AppendParts(buffer[:0], g.Parts(run.First+k))
			if err != nil {
				return nil, err
			}
			all = append(all, string(text))
		}
	}
	return all, nil
}

// ErrNoNumber is why a tag of Wide texts issues no numbers, and its texts are none.
var ErrNoNumber = &allocator.Error{Kind: allocator.Refused,
	Msg: "its IDs have 80 bits (44/20/16) and exist only as texts; NextBatch with texts, " +
		"POST next?count=1&texts=true over HTTP, `march id batch --texts`, and NextText in the Go client issue them, Decode takes them apart"}

// ID returns the ID of a text. Its errors are Invalid, for a text that is none of the
// tag's, those of Usable, and ErrNoNumber for Wide texts.
func (t *Text) ID(text string) (int64, error) {
	if err := t.Usable(); err != nil {
		return 0, err
	}
	if t.Wide() {
		return 0, ErrNoNumber
	}
	v, err := t.format.ParseText(text)
	return v.ID, err
}

// Cache has the texts of many tags, whose formats often are the same: one Text for all of
// them. It keeps what is in use. Make it with NewCache.
type Cache struct {
	keys []format.Key
	mu   struct {
		sync.Mutex
		texts map[formatKey]weak.Pointer[Text]
	}
}

type formatKey struct{ description, keyCheck string }

// NewCache returns an empty cache of a process with these keys.
func NewCache(keys []format.Key) *Cache {
	c := &Cache{keys: keys}
	c.mu.texts = make(map[formatKey]weak.Pointer[Text])
	return c
}

// Of returns what New does.
func (c *Cache) Of(description, keyCheck string) *Text {
	if description == "" {
		return nil
	}
	key := formatKey{description, keyCheck}
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.mu.texts[key].Value(); t != nil {
		return t
	}
	t := New(description, keyCheck, c.keys)
	c.mu.texts[key] = weak.Make(t)
	runtime.AddCleanup(t, c.remove, key)
	return t
}

// remove forgets a text that is not in use any more.
func (c *Cache) remove(key formatKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.texts[key].Value() == nil { // or else another one came in its place
		delete(c.mu.texts, key)
	}
}
