package imports_test

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/march-id/march/allocator"
	"github.com/march-id/march/internal/foreign"
	"github.com/march-id/march/internal/imports"
)

// messages returns what a message says of bad rows.
func messages(bad []*imports.Bad) (all []string) {
	for _, b := range bad {
		all = append(all, b.Error())
	}
	return all
}

func read(t *testing.T, s *imports.System, text string) (rows []imports.Row, bad []string) {
	t.Helper()
	rows, wrong, err := imports.ReadTable(strings.NewReader(text), "t", s)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	for i := range rows {
		rows[i].Place = ""
	}
	return rows, messages(wrong)
}

// TestReadTable: each system's table, in each form.
func TestReadTable(t *testing.T) {
	t.Parallel()
	row := func(name string, next, step int64) imports.Row {
		return imports.Row{Name: name, Next: next, Step: step, Delta: 1}
	}
	for _, c := range []struct {
		system *imports.System
		text   string
		want   []imports.Row
	}{
		{imports.Leaf, "biz_tag\tmax_id\tstep\tdescription\tupdate_time\norder\t1\t1000\tNULL\t2026-01-01 00:00:00\n",
			[]imports.Row{row("order", 1, 1000)}},
		{imports.Leaf, "description\tSTEP\tBiz_Tag\tMAX_ID\r\nx\t10\torder\t7\r\n\r\ny\t20\tuser\t8",
			[]imports.Row{row("order", 7, 10), row("user", 8, 20)}},
		{imports.Leaf, "order\t1\t1000\nuser\t2\tNULL\nitem\t3\n",
			[]imports.Row{row("order", 1, 1000), row("user", 2, 0), row("item", 3, 0)}},
		{imports.Leaf, `a\tb\\c\nd\0` + "\t5\t6\n" + `\N0` + "\t5\t6\n",
			[]imports.Row{row("a\tb\\c\nd\x00", 5, 6), row("N0", 5, 6)}},
		{imports.Leaf, "\xef\xbb\xbfbiz_tag,max_id,step\r\norder,1,1000\r\n\"a,\"\"b\n\",2,3\r\n",
			[]imports.Row{row("order", 1, 1000), row("a,\"b\n", 2, 3)}},
		{imports.TinyID, "biz_type\tmax_id\tstep\tdelta\tremainder\nuser\t500\t100\t2\t1\n",
			[]imports.Row{{Name: "user", Next: 501, Step: 100, Delta: 2, Remainder: 1}}},
		{imports.TinyID, "id,biz_type,begin_id,max_id\n7,user,1,500\n", []imports.Row{row("user", 501, 0)}},
		{imports.CosID, "name\tlast_max_id\tlast_fetch_time\nshop.order\t20\t1700000000000\n",
			[]imports.Row{row("shop.order", 21, 0)}},
		{imports.Redis, "order:id\t 41 \n", []imports.Row{row("order:id", 42, 0)}},
		{imports.Redis, "order:id,9223372036854775805\n", []imports.Row{row("order:id", math.MaxInt64-1, 0)}},
		{imports.MySQL, "TABLE_NAME\tAUTO_INCREMENT\norders\t42\n", []imports.Row{row("orders", 42, 0)}},
		{imports.MySQL, "", nil},
		{imports.MySQL, "table_name\tauto_increment\n", nil},
	} {
		got, bad := read(t, c.system, c.text)
		if diff := cmp.Diff(c.want, got); diff != "" || len(bad) > 0 {
			t.Errorf("%s %q: bad %q (-want +got)\n%s", c.system.Name, c.text, bad, diff)
		}
	}
}

// TestReadBatch: what `mysql --batch -e "SELECT * FROM leaf_alloc"` of MariaDB 10.11 wrote,
// with a tab, a backslash and a zero in a name, and lines' ends in a text.
func TestReadBatch(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/leaf_alloc.tsv")
	if err != nil {
		t.Fatal(err)
	}
	got, bad := read(t, imports.Leaf, string(text))
	want := []imports.Row{
		{Name: "leaf-segment-test", Next: 1, Step: 2000, Delta: 1}, {Name: "odd\ttab\\\x00", Next: 5, Step: 1000,
			Delta: 1}, {Name: "Order:id", Next: 3001, Step: 1000, Delta: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" || len(bad) > 0 {
		t.Errorf("bad %q (-want +got)\n%s", bad, diff)
	}
}

// TestReadTableBad: each bad row is named by its line, field and value, and what is allowed.
func TestReadTableBad(t *testing.T) {
	t.Parallel()
	const number = `; allowed: a whole number, `
	for _, c := range []struct {
		system *imports.System
		text   string
		want   []string
	}{
		{imports.Leaf,
			"biz_tag\tmax_id\tstep\n\t1\t1\na\t-1\t1\n\nb\t1.5\t1\nc\t1\t0\nd\t9223372036854775806\t1" +
				"\nNULL\t1\t1\nok\t1\t1\ne\t1\t1099511627777\nf\n", []string{
				`t, line 2: biz_tag: ""; allowed: a name`,
				`t, line 3: max_id: "-1"` + number + `0 to 9223372036854775805`,
				`t, line 5: max_id: "1.5"` + number + `0 to 9223372036854775805`,
				`t, line 6: step: "0"` + number + `1 to 1099511627776`,
				`t, line 7: max_id: "9223372036854775806"` + number + `0 to 9223372036854775805`,
				`t, line 8: biz_tag: "NULL"; allowed: a name`,
				`t, line 10: step: "1099511627777"` + number + `1 to 1099511627776`,
				`t, line 11: max_id: ""; allowed: a field for each of biz_tag, max_id`,
			}},
		{imports.TinyID, "a,1,1,0,0\na,1,1,2,2\na,1,1,1,x\n", []string{
			`t, line 1: delta: "0"` + number + `1 to 2147483647`,
			`t, line 2: remainder: "2"; allowed: below delta (2)`,
			`t, line 3: remainder: "x"` + number + `0 to 2147483647`,
		}},
		{imports.Redis, "a\t0x10\na\t" + strings.Repeat("1", 200) + "\nb\t\n", []string{
			`t, line 1: value: "0x10"` + number + `0 to 9223372036854775805`,
			`t, line 2: value: "` + strings.Repeat("1", 100) + `..."` + number + `0 to 9223372036854775805`,
			`t, line 3: value: ""` + number + `0 to 9223372036854775805`,
		}},
		{imports.CosID, "\"a\nb\",x\nc,y\n", []string{
			`t, line 1: last_max_id: "x"` + number + `0 to 9223372036854775805`,
			`t, line 3: last_max_id: "y"` + number + `0 to 9223372036854775805`,
		}},
	} {
		if _, bad := read(t, c.system, c.text); !slices.Equal(bad, c.want) {
			t.Errorf("%s %q:\n%s\nwant\n%s", c.system.Name, c.text, strings.Join(bad, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// TestReadTableRefuses: a text that is no table.
func TestReadTableRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a,1\n\"b,2\n": "t, line 2: no CSV: ",
		"a\t1\t1\n" + strings.Repeat("x", 70_000) + "\t1": "t, line 2: the line is too long; allowed: " +
			"up to 65536 bytes",
		"a," + strings.Repeat("1", 70_000): "t, line 1: the line is too long; allowed: up to 65536 bytes",
		strings.Repeat("a\t1\t1\n", 1_000_001): "t, line 1000001: more than 1000000 rows; allowed: " +
			"up to so many in one import",
		"a,1,\"" + strings.Repeat("x", 65<<20): "t: the text is too long; allowed: up to 64 MiB",
	} {
		rows, bad, err := imports.ReadTable(strings.NewReader(text), "t", imports.Leaf)
		if allocator.KindOf(err) != allocator.Invalid || !strings.HasPrefix(err.Error(), want) ||
			rows != nil || bad != nil {
			t.Errorf("%.20q: %v; want %q", text, err, want)
		}
	}
}

// TestMerge: a counter begins above the largest row of its name and the margin.
func TestMerge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		system *imports.System
		margin int64
		text   string
		want   []imports.Counter
		bad    []string
	}{
		{imports.Leaf, -1, "b\t5000\t10\nOrder:id\t1\t3000000\n", []imports.Counter{
			{Name: "Order:id", Tag: "0_30_4frder_3aid", Next: 1, Margin: 6_000_000, From: 6_000_001, Step: 3_000_000},
			{Name: "b", Tag: "b", Next: 5000, Margin: 2_000_000, From: 2_005_000, Step: 10},
		}, nil},
		{imports.TinyID, -1, "a,300,100,2,0\na,500,200,2,1\nb,1,100,2,1\nc,7,10,1,0\nc,9,10,1,0\nd,1\n",
			[]imports.Counter{
				{Name: "a", Tag: "a", Next: 501, Margin: 400, From: 901, Step: 200,
					Notes: []string{"2 rows: the largest"}},
				{Name: "b", Tag: "b", Next: 2, Margin: 200, From: 202, Step: 100,
					Notes: []string{"1 of 2 databases (delta): import the tables of all of them together"}},
				{Name: "c", Tag: "c", Next: 10, Margin: 20, From: 30, Step: 10, Notes: []string{"2 rows: the largest"}},
				{Name: "d", Tag: "d", Next: 2, Margin: 100_000, From: 100_002},
			}, nil},
		{imports.CosID, -1, "a.b,20\n", []imports.Counter{{Name: "a.b", Tag: "a.b", Next: 21,
			Margin: 1_000_000, From: 1_000_021}}, nil},
		{imports.Redis, 0, "x,9\nX,3\n", []imports.Counter{
			{Name: "X", Tag: "0_30_58", Next: 4, From: 4,
				Notes: []string{`differs only in case from "x": two tags here, one key where case does not count`}},
			{Name: "x", Tag: "x", Next: 10, From: 10,
				Notes: []string{`differs only in case from "X": two tags here, one key where case does not count`}},
		}, nil},
		{imports.MySQL, 5, "orders,10\n" + strings.Repeat("é",
			513) + ",1\ntop,9223372036854775802\nmost,9223372036854775801\n", []imports.Counter{
			{Name: "most", Tag: "most", Next: math.MaxInt64 - 6, Margin: 5, From: math.MaxInt64 - 1},
			{Name: "orders", Tag: "orders", Next: 10, Margin: 5, From: 15},
		}, []string{
			`t, line 3: auto_increment: "9223372036854775802"; allowed: up to 9223372036854775801 with a margin of 5`,
			`t, line 2: table_name: "` + strings.Repeat("é", 50) + `..."; allowed: a name of 1 to 1024 bytes`,
		}},
		{imports.Redis, math.MaxInt64, "x,9\n", nil,
			[]string{`t, line 1: value: "9"; allowed: up to 0 with a margin of 9223372036854775807`}},
		{imports.Redis, 5, "x,9223372036854775801\ny,9223372036854775800\n",
			[]imports.Counter{{Name: "y", Tag: "y", Next: math.MaxInt64 - 6, Margin: 5, From: math.MaxInt64 - 1}},
			[]string{`t, line 1: value: "9223372036854775801"; allowed: up to 9223372036854775800 with a margin of 5`}},
	} {
		rows, wrong, err := imports.ReadTable(strings.NewReader(c.text), "t", c.system)
		if err != nil || len(wrong) > 0 {
			t.Fatalf("%q: %v, %v", c.text, messages(wrong), err)
		}
		got, bad := imports.Merge(c.system, rows, c.margin)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s %q (-want +got)\n%s", c.system.Name, c.text, diff)
		}
		if diff := cmp.Diff(c.bad, messages(bad)); diff != "" {
			t.Errorf("%s %q, bad (-want +got)\n%s", c.system.Name, c.text, diff)
		}
	}
}

// FuzzReadTable: whatever the text, each row that is read has a counter whose tag is its
// name's and whose IDs are above the row's, or is bad.
func FuzzReadTable(f *testing.F) {
	for _, text := range []string{
		"biz_tag\tmax_id\tstep\norder\t1\t1000\n", "a\\t\\0\t1\nNULL\t\\N\t3", "name,last_max_id\n\"a\"\"\n\",5\r\n",
		"\xef\xbb\xbfa,1,1,2,1\n", "a,9223372036854775805", "\"", "\t\n\n,",
		strings.Repeat("\xe3", 20) + ",1", // its tag has a hash
	} {
		for system := range imports.Systems {
			f.Add(text, uint8(system), int64(-1))
		}
		f.Add(text, uint8(0), int64(0))
	}
	f.Fuzz(func(t *testing.T, text string, system uint8, margin int64) {
		s := imports.Systems[int(system)%len(imports.Systems)]
		rows, _, err := imports.ReadTable(strings.NewReader(text), "t", s)
		if err != nil {
			if allocator.KindOf(err) != allocator.Invalid || rows != nil {
				t.Fatalf("%d rows, %v", len(rows), err)
			}
			return
		}
		counters, bad := imports.Merge(s, rows, margin)
		above := make(map[string]int64)
		for _, c := range counters {
			if tag, err := foreign.Tag(c.Name); err != nil || tag != c.Tag {
				t.Errorf("tag %q of %q; want %q, %v", c.Tag, c.Name, tag, err)
			}
			if key, ok := foreign.Key(c.Tag); ok && key != c.Name {
				t.Errorf("tag %q of %q stands for %q", c.Tag, c.Name, key)
			}
			if c.From < c.Next || c.From-c.Next != c.Margin || c.From >= allocator.MaxID || c.Margin < 0 ||
				margin >= 0 && c.Margin != margin {
				t.Errorf("%+v", c)
			}
			above[c.Name] = c.Next
		}
		if len(above) != len(counters) {
			t.Errorf("%d counters of %d names", len(counters), len(above))
		}
		for _, r := range rows {
			if next, ok := above[r.Name]; ok && next < r.Next || !ok && len(bad) == 0 {
				t.Errorf("%+v is not below %d, %v", r, next, ok)
			}
		}
	})
}
