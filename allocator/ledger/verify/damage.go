package verify

// unreadable adds a key that cannot be read, with what that stops and what to do.
func (v *verification) unreadable(key string, err error) {
	d := v.cluster.Keys.Damage(key, v.current, v.active)
	next := d.Remedy
	if d.Command != "" {
		next += ": `" + d.Command + "`"
	}
	v.problem("%s; next: %s", d.Says(err), next)
}
