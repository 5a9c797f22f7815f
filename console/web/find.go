package web

import (
	"strings"

	"github.com/march-id/march/allocator"
	marchv1 "github.com/march-id/march/api/march/v1"
)

// findView is the page on which pages, tags, rooms and commands are found. The palette (keys.js)
// shows its results.
type findView struct {
	Search string
	Found  []finding
	More   bool // there are more tags or rooms than are shown
}

// finding is a page to go to, or a command to copy.
type finding struct{ Kind, Label, Link, Command string }

// foundTags is how many tags are shown, and foundRooms how many rooms.
const foundTags, foundRooms = 8, 8

// deeds are what operators do on pages.
var deeds = []finding{
	{"do", "Plan a migration", "/migrations", ""}, {"do", "Decode an ID or a text", "/decode", ""},
	{"do", "See the tags that run out first", "/tags?sort=lasts", ""},
	{"do", "See the busiest tags", "/tags?order=down&sort=rate", ""},
}

// commands are what operators type most; docs/operate explains them.
var commands = []finding{
	{"command", "Show the state of all rooms", "", "march status"},
	{"command", "Check the cluster, its hosts and etcd", "", "march doctor"},
	{"command", "Show what runs out first", "", "march status --capacity"},
	{"command", "Follow a migration", "", "march migrate watch"},
	{"command", "List instances", "", "march instance list"},
	{"command", "List changes and their actors", "", "march audit list"},
	{"command", "Find the room of an ID", "", "march id decode TAG ID"},
	{"command", "Create a tag", "", "march tag create TAG"},
	{"command", "Write the layout, tags and settings to a file", "", "march export > cluster.yaml"},
	{"command", "Collect what a maintainer needs", "", "march debug bundle"},
	{"command", "Compare all that etcd has with the rules", "", "march verify"},
	{"command", "Go on after etcd went back in time", "", "march recover"},
}

func (h *Handler) find(c *call) (any, error) {
	v := &findView{Search: strings.TrimSpace(c.URL.Query().Get("search"))}
	search := strings.ToLower(v.Search)
	add := func(list ...finding) {
		for _, f := range list {
			if strings.Contains(strings.ToLower(f.Label+" "+f.Command), search) {
				v.Found = append(v.Found, f)
			}
		}
	}
	for _, page := range h.menu {
		add(finding{"page", page.Label(), page.Path(), ""})
	}
	if id, err := parseInt(v.Search); err == nil {
		v.Found = append(v.Found, finding{"do", "Decode ID " + num(id), "/decode" + with(nil, "id", v.Search), ""})
	}
	if search != "" && len(search) <= allocator.MaxNameLength {
		found, err := h.console.SearchTags(c.Context(), &marchv1.SearchTagsRequest{Search: search, PageSize: foundTags})
		if denied(err) {
			err = nil // the caller may see no tags
		}
		if err != nil {
			return nil, err
		}
		v.More = found.GetFound() > foundTags
		for _, t := range found.GetTags() {
			v.Found = append(v.Found, finding{"tag", t.GetTag().GetName(), "/tags/" + escape(t.GetTag().GetName()), ""})
		}
		rooms, err := h.findRooms(c, search)
		if err != nil {
			return nil, err
		}
		v.More = v.More || len(rooms) > foundRooms
		v.Found = append(v.Found, rooms[:min(len(rooms), foundRooms)]...)
	}
	if c.mayAny("CreateTag") {
		add(finding{"do", "Create a tag", "/tags?do=new#new", ""})
	}
	add(deeds...)
	add(commands...)
	return v, nil
}

// findRooms returns the rooms that are called so, at most one more than are shown.
func (h *Handler) findRooms(c *call, search string) (found []finding, err error) {
	l, err := h.layout(c)
	if denied(err) {
		return nil, nil
	}
	for _, room := range l.GetEver() {
		if strings.Contains(room, search) && len(found) <= foundRooms {
			found = append(found, finding{"room", room, "/instances" + with(nil, "room", room), ""})
		}
	}
	return found, err
}

// denied reports whether the policy refused a call.
func denied(err error) bool {
	kind := allocator.KindOf(err)
	return kind == allocator.Denied || kind == allocator.Unauthenticated
}
