package mirror

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strings"
)

// Sealed returns the file of these lines, with a head that fits their length.
func Sealed(lines []string) string {
	all := strings.Join(lines, "")
	return string(head(int64(headLength+len(all)))) + all
}

// Lines returns the file of these parts.
func Lines(parts ...Part) string {
	var lines []string
	for i, p := range parts {
		b, err := json.Marshal(numbered{int64(i + 1), p})
		if err != nil {
			panic(err) // plain structs
		}
		lines = append(lines, fmt.Sprintf("%08x %s\n", crc32.Checksum(b, castagnoli), b))
	}
	return Sealed(lines)
}
