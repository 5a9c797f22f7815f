package allocator

// Spread says how the IDs of a room fall on the shards of a system that takes the shard id mod n.
type Spread struct {
	Room    Room
	Reached int64   // how many of the n shards get IDs of the room
	Fullest float64 // how many times the mean of n shards the fullest one gets
	Divisor int64   // the greatest common divisor of the boundary and n
}

// Spread returns how the IDs of each room fall on n shards, 1 or more, by lower. With g the greatest common divisor of
// the boundary and n, the shards that an ID reaches depend on id mod g alone, and an ID of each residue mod g reaches
// n/g of them in turn. A range has min(width, g) of the residues mod g.
func (l Layout) Spread(n int64) []Spread {
	g, rest := n, l.Boundary
	for rest != 0 {
		g, rest = rest, g%rest
	}
	all := make([]Spread, 0, len(l.Ranges))
	for _, room := range l.Rooms() {
		width := l.Ranges[room].Width()
		most := width / g
		if width%g != 0 {
			most++
		}
		all = append(all, Spread{room, n / g * min(width, g), float64(most) * float64(g) / float64(width), g})
	}
	return all
}
