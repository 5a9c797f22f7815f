package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Of each setting of a command the program keeps where its value was set: by a flag, in the environment, in the
// file of settings, or nowhere.

// originNote is the annotation of a flag under which its origin is kept.
const originNote = "march_origin"

// noteOrigin keeps where the value of a flag comes from, if not from the command line.
func noteOrigin(f *pflag.Flag, from string) {
	if f.Annotations == nil {
		f.Annotations = make(map[string][]string)
	}
	f.Annotations[originNote] = []string{from}
}

// settled is a setting as a command has it.
type settled struct {
	Name   string `json:"name"`
	Value  string `json:"value"` // without secrets
	Origin string `json:"origin"`
}

// settledOf returns the settings that visit visits, in the order of their names.
func settledOf(visit func(func(*pflag.Flag))) []settled {
	var list []settled
	visit(func(f *pflag.Flag) {
		s := settled{Name: f.Name, Value: f.Value.String(), Origin: "default"}
		if values, ok := f.Value.(pflag.SliceValue); ok {
			s.Value = strings.Join(values.GetSlice(), ",")
		}
		s.Value = withoutSecrets(s.Value)
		if from := f.Annotations[originNote]; len(from) == 1 {
			s.Origin = from[0]
		} else if f.Changed {
			s.Origin = "flag --" + f.Name
		}
		list = append(list, s)
	})
	slices.SortFunc(list, func(a, b settled) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// userInfo is the user and the password in a URL. Passwords stand in files otherwise, of
// which a setting has only the path. A slash in a password is a mistake, and is hidden too.
var userInfo = regexp.MustCompile(`(//)(?:[^/?#,\s:]*:[^?#,\s]*|[^/?#,\s]*)@`)

// withoutSecrets returns a text without the users and passwords of its URLs.
func withoutSecrets(text string) string { return userInfo.ReplaceAllString(text, "${1}hidden@") }
