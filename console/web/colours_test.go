package web_test

import (
	"math"
	"os"
	"regexp"
	"strconv"
	"testing"
)

// colour is the red, green and blue light of a colour, each from 0 to 1.
type colour [3]float64

// sight is what an eye makes of a colour: a matrix over the light (Machado, Oliveira and Fernandes
// 2009, a deficiency that is complete).
type sight [3]colour

var sights = map[string]sight{
	"normal":       {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
	"protanopia":   {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
	"deuteranopia": {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
	"tritanopia":   {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}},
}

func times(m [3]colour, c colour) (out colour) {
	for i, row := range m {
		for k, v := range row {
			out[i] += v * c[k]
		}
	}
	return out
}

// seen returns a colour as an eye sees it, in Oklab, whose distances are those that people see.
func (s sight) seen(c colour) colour {
	light := times(s, c)
	for i, v := range light {
		light[i] = min(max(v, 0), 1)
	}
	cones := times([3]colour{{0.4122214708, 0.5363325363, 0.0514459929}, {0.2119034982, 0.6806995451, 0.1073969566},
		{0.0883024619, 0.2817188376, 0.6299787005}}, light)
	for i, v := range cones {
		cones[i] = math.Cbrt(v)
	}
	return times([3]colour{{0.2104542553, 0.7936177850, -0.0040720468}, {1.9779984951, -2.4285922050, 0.4505937099},
		{0.0259040371, 0.7827717662, -0.8086757660}}, cones)
}

func distance(a, b colour) float64 {
	return math.Sqrt((a[0]-b[0])*(a[0]-b[0]) + (a[1]-b[1])*(a[1]-b[1]) + (a[2]-b[2])*(a[2]-b[2]))
}

// hexColour reads a colour as style sheets write it, without the #.
func hexColour(t *testing.T, text string) (c colour) {
	t.Helper()
	n := must(strconv.ParseUint(text, 16, 24))(t)
	for i := range c {
		v := float64(n>>(16-8*i)&255) / 255
		if c[i] = v / 12.92; v > 0.04045 {
			c[i] = math.Pow((v+0.055)/1.055, 2.4)
		}
	}
	return c
}

func luminance(c colour) float64 { return 0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2] }

// TestColourBlind: the colours of rooms are told apart by the colour-blind, too, and the names of
// rooms can be read on them. Rooms of the same colour have different patterns (TestColours).
func TestColourBlind(t *testing.T) {
	style := must(os.ReadFile("static/style.css"))(t)
	var rooms []colour
	var names []string
	for _, m := range regexp.MustCompile(`\.(c\d+) \{ --room: #([0-9a-f]{6}) \}`).FindAllStringSubmatch(
		string(style), -1) {
		names, rooms = append(names, m[1]), append(rooms, hexColour(t, m[2]))
	}
	if len(rooms) != 12 {
		t.Fatalf("style.css has %d colours for rooms, want 12", len(rooms))
	}
	text := regexp.MustCompile(`\.stretch text \{[^}]*fill: #([0-9a-f]{6})`).FindSubmatch(style)
	if text == nil {
		t.Fatal("style.css has no colour for the names of rooms")
	}
	const far, legible = 0.06, 4.5 // three times what people just see, and the contrast of WCAG 2 for text
	dark := luminance(hexColour(t, string(text[1])))
	for i, c := range rooms {
		if contrast := (luminance(c) + 0.05) / (dark + 0.05); contrast < legible {
			t.Errorf("a name on %s has a contrast of %.2f, want %.1f", names[i], contrast, legible)
		}
		for k := range i {
			for eye, s := range sights {
				if d := distance(s.seen(c), s.seen(rooms[k])); d < far {
					t.Errorf("%s: %s and %s are %.3f apart, want %.2f", eye, names[k], names[i], d, far)
				}
			}
		}
	}
}
