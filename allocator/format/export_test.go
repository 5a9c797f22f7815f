package format

// Mod37 returns the check character of ISO 7064 mod 37,36, of texts of any length.
func Mod37(text string) byte { return mod37.of([]byte(text), 0) }
