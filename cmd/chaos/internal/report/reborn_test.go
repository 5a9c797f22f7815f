package report_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"testing"
)

// reborn returns a history that goes on with another life, as if etcd had been
// restored to where it was at the beginning.
func reborn(t *testing.T, content []byte) []byte {
	t.Helper()
	first, _, _ := bytes.Cut(content, []byte("\n"))
	var line map[string]any
	must(t, json.Unmarshal(first[9:], &line))
	line["why"] = "revision 1"
	text, err := json.Marshal(line)
	must(t, err)
	return fmt.Appendf(content, "%08x %s\n", crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)), text)
}
