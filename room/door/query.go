package door

import (
	"net/url"
	"strings"
)

// Query is the query of a URL, or a form of the same syntax. It is read as url.ParseQuery
// reads it, without a map: most requests have few parameters, and each is asked for once.
type Query string

// Get returns the first value of a parameter, and whether there is one. It ignores
// what url.ParseQuery refuses.
func (q Query) Get(name string) (value string, ok bool) {
	for rest := string(q); rest != ""; {
		var pair string
		pair, rest, _ = strings.Cut(rest, "&")
		if pair == "" || strings.Contains(pair, ";") {
			continue
		}
		key, text, _ := strings.Cut(pair, "=")
		if key, err := url.QueryUnescape(key); err != nil || key != name {
			continue
		}
		if value, err := url.QueryUnescape(text); err == nil {
			return value, true
		}
	}
	return "", false
}

// Check returns url.ParseQuery's error.
func (q Query) Check() error {
	if !strings.ContainsAny(string(q), "%;") { // in which alone it can find a fault
		return nil
	}
	_, err := url.ParseQuery(string(q))
	return err
}
