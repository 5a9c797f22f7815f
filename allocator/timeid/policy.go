package timeid

import "fmt"

// Sequence is the policy for the first sequence of a tick.
type Sequence uint8

const (
	// Reset starts each tick at 0. It is the zero value.
	Reset Sequence = iota
	// Carry goes on from tick to tick, so that id mod n is even at low rates, too. A new tick
	// starts one above the last ID's sequence, or at 1 if the last tick had reached
	// Config.CarryTo; after a full tick it starts at 0. So the very first ID has sequence 1,
	// and a tick has at least half of the sequence. (CosId, AbstractSnowflakeId.java,
	// generate.)
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

// Rollback is the policy for a clock that is behind the tick of the last ID.
type Rollback uint8

const (
	// Wait waits for the clock, for Config.MaxWait in all. It is the zero value.
	Wait Rollback = iota
	// Offset goes on in the last tick. When the tick's sequence is full, it goes on in the next
	// tick as soon as the clock has advanced by one tick, too. So it runs ahead of the clock by
	// as much as the clock went back, at most Config.MaxAhead.
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
