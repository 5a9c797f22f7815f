package setting

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"time"

	"github.com/march-id/march/allocator"
)

// Field is a setting of a server: a field of a struct with the tag flag, which names a flag, a variable of the
// environment and a key in files. Of the other tags, help is what the setting does, least and most bound it, of has the
// words that it may be, and check names another check of the command line. Its default is what the struct has at first.
type Field struct {
	reflect.StructTag
	Name string
	To   any // points at the field
}

// Fields returns the settings of the struct to which of points, and of the structs in it.
func Fields(of any) []Field { return fields(reflect.ValueOf(of).Elem()) }

func fields(v reflect.Value) (list []Field) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if name, is := f.Tag.Lookup("flag"); is {
			list = append(list, Field{f.Tag, name, v.Field(i).Addr().Interface()})
		} else if f.Type.Kind() == reflect.Struct && (f.IsExported() || f.Anonymous) {
			list = append(list, fields(v.Field(i))...)
		}
	}
	return list
}

// Check checks that each setting of a struct is within its bounds. Its error is Invalid.
func Check(of any) error {
	for _, f := range Fields(of) {
		least, bounded := f.Lookup("least")
		if !bounded {
			continue
		}
		value, allowed := reflect.ValueOf(f.To).Elem(), least+" or more"
		n, most := quantity(fmt.Sprint(value)), math.Inf(1)
		if text, has := f.Lookup("most"); has {
			allowed, most = least+" to "+text, quantity(text)
		}
		if !(n >= quantity(least) && n <= most) { // nor NaN
			return allocator.Errorf(allocator.Invalid, "%s: %v; allowed: %s", f.Name, value, allowed)
		}
	}
	return nil
}

// quantity returns a number or a duration, to be compared with another one.
func quantity(text string) float64 {
	if d, err := time.ParseDuration(text); err == nil {
		return float64(d)
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(err)
	}
	return n
}
