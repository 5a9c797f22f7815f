// Package words writes numbers in sentences, the same on a terminal and on a page.
package words

import (
	"fmt"
	"strings"
)

// Grouped returns a whole number, of any type, with its digits in groups: "1,000".
func Grouped(n any) string {
	digits := fmt.Sprint(n)
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return sign + b.String()
}

// Counted returns a number with what it counts: "1 tag", "1,000 tags".
func Counted(n any, what string) string {
	number := Grouped(n)
	if number != "1" {
		what += "s"
	}
	return number + " " + what
}
