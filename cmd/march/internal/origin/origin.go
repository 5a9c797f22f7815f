// Package origin tells of each setting of a command which value it has, and where that was
// set: by a flag, in the environment, in the file of settings, or nowhere.
package origin

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// note is the annotation of a flag under which its origin is kept.
const note = "march_origin"

// Note keeps where the value of a flag comes from, if not from the command line.
func Note(f *pflag.Flag, from string) {
	if f.Annotations == nil {
		f.Annotations = make(map[string][]string)
	}
	f.Annotations[note] = []string{from}
}

// Setting is a setting as a command has it.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"` // without secrets
	Origin string `json:"origin"`
}

// Of returns the settings that visit visits, in the order of their names.
func Of(visit func(func(*pflag.Flag))) []Setting {
	var list []Setting
	visit(func(f *pflag.Flag) {
		s := Setting{Name: f.Name, Value: f.Value.String(), Origin: "default"}
		if values, ok := f.Value.(pflag.SliceValue); ok {
			s.Value = strings.Join(values.GetSlice(), ",")
		}
		s.Value = WithoutSecrets(s.Value)
		if from := f.Annotations[note]; len(from) == 1 {
			s.Origin = from[0]
		} else if f.Changed {
			s.Origin = "flag --" + f.Name
		}
		list = append(list, s)
	})
	slices.SortFunc(list, func(a, b Setting) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// userInfo is the user and the password in a URL. Passwords stand in files otherwise, of
// which a setting has only the path. A slash in a password is a mistake, and is hidden too.
var userInfo = regexp.MustCompile(`(//)(?:[^/?#,\s:]*:[^?#,\s]*|[^/?#,\s]*)@`)

// WithoutSecrets returns a text without the users and passwords of its URLs.
func WithoutSecrets(text string) string { return userInfo.ReplaceAllString(text, "${1}hidden@") }
