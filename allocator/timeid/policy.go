package timeid

import "fmt"

// Sequence says at which number a tick's sequence starts.
type Sequence uint8

const (
	// Reset starts each tick at 0. It is the zero value.
	Reset Sequence = iota
	// Carry goes on from tick to tick, so that id mod n is even at low rates, too. A
	// new tick starts at 1 where the last one had reached Config.CarryTo, and one
	// above the last ID otherwise; after a full tick it starts at 0. So the first ID
	// of all has sequence 1, and a tick has at least half of the sequence. (CosId,
	// AbstractSnowflakeId.java, generate.)
	Carry
	// Random starts each tick at a random number below Config.RandomBelow, also after
	// a full tick. (Leaf, SnowflakeIDGenImpl.java.)
	Random
)

// String returns the policy as ParseSequence reads it.
func (s Sequence) String() string {
	switch s {
	case Reset:
		return "reset"
	case Carry:
		return "carry"
	case Random:
		return "random"
	}
	return fmt.Sprintf("sequence-%d", uint8(s))
}

// Rollback says what a generator does while the clock is behind the tick of the
// last ID.
type Rollback uint8

const (
	// Wait waits for the clock, for Config.MaxWait in all. It is the zero value.
	Wait Rollback = iota
	// Offset goes on in the last tick, and, when its sequence is full, in the next
	// one as soon as the clock has gone on by one tick, too. So it runs ahead of the
	// clock by what the clock went back, at most Config.MaxAhead.
	Offset
	// Fail refuses at once.
	Fail
)

// String returns the policy as ParseRollback reads it.
func (r Rollback) String() string {
	switch r {
	case Wait:
		return "wait"
	case Offset:
		return "offset"
	case Fail:
		return "fail"
	}
	return fmt.Sprintf("rollback-%d", uint8(r))
}

// MarshalText writes the policy as String does.
func (s Sequence) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads it as ParseSequence does.
func (s *Sequence) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSequence(string(text))
	return err
}

// MarshalText writes the policy as String does.
func (r Rollback) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads it as ParseRollback does.
func (r *Rollback) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRollback(string(text))
	return err
}
