package format_test

import (
	"crypto/aes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/allocator/format"
	"github.com/march-id/march/internal/programs"
)

// slowOpaque is the permutation as its documentation has it, by big numbers.
func slowOpaque(t require, secret []byte, size uint64, tweak string, n uint64) uint64 {
	mac := hmac.New(sha256.New, secret)
	_, _ = fmt.Fprintf(mac, "march opaque 1\n%d\n%s", size, tweak)
	block, err := aes.NewCipher(mac.Sum(nil)[:16])
	if err != nil {
		t.Fatalf("%v", err)
	}
	whole := new(big.Int).SetUint64(size)
	low := new(big.Int).Sqrt(whole)
	if new(big.Int).Mul(low, low).Cmp(whole) < 0 {
		low.Add(low, big.NewInt(1))
	}
	high, rest := new(big.Int).DivMod(whole, low, new(big.Int))
	if rest.Sign() > 0 {
		high.Add(high, big.NewInt(1))
	}
	f := func(i int, x, below *big.Int) *big.Int {
		var in, out [16]byte
		in[0] = byte(i)
		x.FillBytes(in[8:])
		block.Encrypt(out[:], in[:])
		y := new(big.Int).SetBytes(out[:8])
		return y.Rsh(y.Mul(y, below), 64)
	}
	for {
		h, l := new(big.Int).DivMod(new(big.Int).SetUint64(n), low, new(big.Int))
		for i := range 8 {
			if i%2 == 0 {
				h.Mod(h.Add(h, f(i, l, high)), high)
			} else {
				l.Mod(l.Add(l, f(i, h, low)), low)
			}
		}
		if n = new(big.Int).Add(new(big.Int).Mul(h, low), l).Uint64(); n < size {
			return n
		}
	}
}

type require interface {
	Fatalf(format string, args ...any)
}

// TestOpaque compares opaque numbers with a second implementation, both ways.
func TestOpaque(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Byte().Draw(rt, "seed")
		size := rapid.OneOf(rapid.Uint64Range(1_000_000, 1<<63), rapid.Uint64Range(1_000_000, 2_000_000),
			rapid.SampledFrom([]uint64{1 << 20, 1<<20 + 1, 1 << 21, 1 << 62, 1<<62 + 1, 1 << 63, 1e12, 1e18,
				3037000499 * 3037000499, 3037000499*3037000499 + 1})).Draw(rt, "size")
		tweak := rapid.StringMatching("[a-z]{0,5}").Draw(rt, "tweak")
		n := rapid.Uint64Range(0, size-1).Draw(rt, "id")
		description := fmt.Sprintf("opaque(k, %d", size)
		if tweak != "" {
			description += ", " + tweak
		}
		f := parse(t, description+") | decimal", key(t, "k", seed))
		if f.Domain().Largest != int64(size-1) {
			rt.Fatalf("%v: largest %d, want %d", f, f.Domain().Largest, size-1)
		}
		wantText(t, f, id(int64(n)), fmt.Sprint(slowOpaque(rt, secret(seed), size, tweak, n)))
	})
}

// TestOpaquePermutes: each number of the smallest domain is the text of one ID, and they
// are in no order.
func TestOpaquePermutes(t *testing.T) {
	const size = 1_000_000
	ids := size
	if !programs.All() { // .ci/run has all
		ids = 100_000
	}
	f := parse(t, "opaque(k, 10^6) | decimal", key(t, "k", 3))
	plain := parse(t, "decimal")
	seen := make([]bool, size)
	up, fixed, last := 0, 0, int64(-1)
	var buffer [32]byte
	for n := range int64(ids) {
		text, err := f.Append(buffer[:0], id(n))
		if err != nil {
			t.Fatal(err)
		}
		v, err := plain.ParseText(string(text))
		if err != nil || v.ID >= size || seen[v.ID] {
			t.Fatalf("%d is %s (%v): out of the domain, or there before", n, text, err)
		}
		if seen[v.ID] = true; v.ID > last {
			up++
		}
		if last = v.ID; v.ID == n {
			fixed++
		}
	}
	// Of a random permutation half of the numbers are above the one before, and 1 stays.
	if up < ids/2-3000 || up > ids/2+3000 || fixed > 10 {
		t.Errorf("%d of %d numbers are above the one before, %d stay", up, ids, fixed)
	}
}

// TestConcurrent: goroutines that share a format do not disturb each other.
func TestConcurrent(t *testing.T) {
	f := parse(t, "opaque(k, 10^12) | decimal(12) | damm", key(t, "k", 4))
	want := make([]string, 100)
	for n := range want {
		text, err := f.Append(nil, id(int64(n)))
		if err != nil {
			t.Fatal(err)
		}
		want[n] = string(text)
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			var buffer []byte
			for i := range 5000 {
				n := i % len(want)
				var err error
				if buffer, err = f.Append(buffer[:0], id(int64(n))); err != nil || string(buffer) != want[n] {
					t.Errorf("%d is %s, %v; want %s", n, buffer, err, want[n])
				}
				if v, err := f.ParseText(want[n]); v != id(int64(n)) || err != nil {
					t.Errorf("%s is read as %+v, %v", want[n], v, err)
				}
			}
		})
	}
	group.Wait()
}

// TestKeys: the texts of two keys meet in one domain, and so do those of two tweaks; with a
// prefix for each key they never do.
func TestKeys(t *testing.T) {
	for _, pair := range [][2]*format.Format{
		{parse(t, "opaque(k, 10^6) | decimal(6)", key(t, "k", 1)),
			parse(t, "opaque(k, 10^6) | decimal(6)", key(t, "k", 2))},
		{parse(t, "opaque(k, 10^6, a) | decimal(6)", key(t, "k", 1)),
			parse(t, "opaque(k, 10^6, b) | decimal(6)", key(t, "k", 1))},
		{parse(t, "prefix(1) | opaque(k, 10^6) | decimal(6)", key(t, "k", 1)),
			parse(t, "prefix(2) | opaque(k, 10^6) | decimal(6)", key(t, "k", 2))},
	} {
		texts, met := map[string]bool{}, 0
		for n := range int64(20_000) {
			text, err := pair[0].Append(nil, id(n))
			if err != nil {
				t.Fatal(err)
			}
			texts[string(text)] = true
		}
		for n := range int64(20_000) { // other IDs of the same tag
			text, err := pair[1].Append(nil, id(20_000+n))
			if err != nil {
				t.Fatal(err)
			}
			if texts[string(text)] {
				met++
			}
		}
		if prefixed := strings.HasPrefix(pair[0].String(), "prefix"); prefixed != (met == 0) {
			t.Errorf("%v and %v: %d texts of both", pair[0], pair[1], met)
		}
	}
}

// TestNoKey: a format without its key is described, and refuses to write and read.
func TestNoKey(t *testing.T) {
	const description = "opaque(orders-1, 10^12) | decimal(12)"
	f := parse(t, description, key(t, "other", 1))
	if least, most := f.Length(); f.String() != description || f.Domain().Largest != 999_999_999_999 ||
		least != 12 || most != 12 {
		t.Errorf("%v: %+v, %d, %d", f, f.Domain(), least, most)
	}
	_, wrote := f.Append(nil, id(1))
	_, read := f.ParseText("000000000001")
	for _, err := range []error{wrote, read} {
		if missing := new(format.KeyError); !errors.As(err, &missing) || missing.Name != "orders-1" ||
			allocator.KindOf(err) != allocator.Refused {
			t.Errorf("%v; want a *KeyError of orders-1", err)
		}
	}
}

// TestKey: keys are checked, print as their name, and tell by their check value whether
// they are the same.
func TestKey(t *testing.T) {
	k := key(t, "orders-1", 1)
	for _, text := range []string{fmt.Sprint(k), fmt.Sprintf("%+v", k), fmt.Sprintf("%#v", k),
		fmt.Sprintf("%s", []format.Key{k})} {
		if strings.Trim(text, "[]") != "key orders-1" {
			t.Errorf("printed as %s", text)
		}
	}
	if k.CheckValue() != key(t, "other", 1).CheckValue() || k.CheckValue() == key(t, "orders-1", 2).CheckValue() ||
		len(k.CheckValue()) != 16 {
		t.Errorf("check values: %s, %s", k.CheckValue(), key(t, "orders-1", 2).CheckValue())
	}
	for _, test := range []struct {
		name string
		size int
	}{{"", 32}, {"A", 32}, {"a b", 32}, {"a", 31}, {"a", 33}, {"a", 0}} {
		if _, err := format.NewKey(test.name, make([]byte, test.size)); allocator.KindOf(err) != allocator.Invalid ||
			!strings.Contains(err.Error(), "allowed: ") {
			t.Errorf("%q of %d bytes: %v", test.name, test.size, err)
		}
	}
	text := hex.EncodeToString(secret(1))
	for _, good := range []string{text, text + "\n", " " + strings.ToUpper(text) + "\r\n"} {
		if got, err := format.ParseKey("orders-1", good); got != k || err != nil {
			t.Errorf("%q: %v, %v", good, got, err)
		}
	}
	for _, bad := range []string{"", text[1:], text[2:], text + "00", "x" + text[1:], text[:63] + "\n0"} {
		if _, err := format.ParseKey("orders-1", bad); allocator.KindOf(err) != allocator.Invalid ||
			strings.Contains(err.Error(), text[10:20]) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
