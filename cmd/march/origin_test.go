package main

import (
	"slices"
	"testing"

	"github.com/spf13/pflag"
)

func TestSettingsHaveTheirOrigins(t *testing.T) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.StringSlice("etcd", []string{"127.0.0.1:2379"}, "")
	flags.String("name", "", "")
	flags.Duration("hold", 0, "")
	if err := flags.Parse([]string{"--etcd", "https://me:secret@one:2379,two:2379"}); err != nil {
		t.Fatal(err)
	}
	noteOrigin(flags.Lookup("name"), "environment MARCH_NAME")
	got := settledOf(func(visit func(*pflag.Flag)) { flags.VisitAll(visit) })
	want := []settled{
		{"etcd", "https://hidden@one:2379,two:2379", "flag --etcd"},
		{"hold", "0s", "default"},
		{"name", "", "environment MARCH_NAME"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWithoutSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"http://a:b@c/d":          "http://hidden@c/d",
		"https://token@c":         "https://hidden@c",
		"http://a:p@ss@c":         "http://hidden@c",
		"http://c/d?mail=x@y":     "http://c/d?mail=x@y",
		"http://a:p/s@c":          "http://hidden@c",
		"http://c:80/d?mail=x@y":  "http://c:80/d?mail=x@y",
		"one:2379,http://u:p@two": "one:2379,http://hidden@two",
		"user@host":               "user@host",
	} {
		if got := withoutSecrets(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
