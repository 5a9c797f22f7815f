package setting

import marchv1 "github.com/march-id/march/api/march/v1"

// The fields of requests that are flags of a command and fields of a form.
var (
	CreateFields = []Setting{
		Of((*marchv1.CreateTagRequest)(nil), "fresh", "the name was never in use, so its first IDs need not leave the "+
			"margins of recovers free"),
		Of((*marchv1.CreateTagRequest)(nil), "reuse", "create it also where IDs, or texts, of a deleted tag of this "+
			"name may come again; says which"),
	}
	SkipFields = []Setting{
		Of((*marchv1.SkipTagRequest)(nil), "to", "the least ID to issue from now on"),
		Of((*marchv1.SkipTagRequest)(nil), "rooms", "only these rooms (default all, also those that come later)"),
		Of((*marchv1.SkipTagRequest)(nil), "force", "skip more IDs than the tag's max-jump"),
	}
	PrescaleFields = []Setting{
		Of((*marchv1.PrescaleTagRequest)(nil), "step", "how many IDs each instance holds at least, up to the tag's "+
			"max-step; 0 ends a prescale"),
		{message: (*marchv1.PrescaleTagRequest)(nil), Path: "duration", Help: "how long, 1s to 168h", preset: "1h0m0s"},
	}
	ApplyFields = []Setting{
		Of((*marchv1.ApplyMigrationRequest)(nil), "hold", "how long at least to wait for a silent instance; 0s for "+
			"its own hold, up to 168h"),
	}
)
