// SPDX-License-Identifier: Apache-2.0

package digits

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/libra-ina/libra/internal/file"
	"github.com/libra-ina/libra/train/data"
)

// ErrFormat means that a file is not what [Open] reads.
var ErrFormat = errors.New("digits: wrong format")

// maxBytes bounds what an IDX file may contain: MNIST's images have 47 MB.
const maxBytes = 1 << 30

// Images are images with their labels.
type Images struct {
	Shape  []int     // of an image
	Pixels int       // of an image
	Values []float32 // float32[n, Pixels], 0 to 1
	Labels []uint8   // uint8[n]
}

// Len returns the number of images.
func (i *Images) Len() int { return len(i.Labels) }

// Part returns a view of count images from first on.
func (i *Images) Part(first, count int) *Images {
	return &Images{Shape: i.Shape, Pixels: i.Pixels, Values: i.Values[first*i.Pixels:][:count*i.Pixels],
		Labels: i.Labels[first:][:count]}
}

// Open reads the IDX files of images and of labels, of bytes each, plain or compressed by gzip. The
// error is [ErrFormat] if they are no such files, or have different numbers.
func Open(images, labels string) (*Images, error) {
	shape, pixels, err := readIDX(images)
	if err != nil {
		return nil, err
	}
	of, names, err := readIDX(labels)
	switch {
	case err != nil:
		return nil, err
	case len(shape) < 2 || shape[0] == 0 || len(pixels) == 0:
		return nil, fmt.Errorf("%w: %s has the shape %v: give images, one after the other", ErrFormat, images, shape)
	case len(of) != 1:
		return nil, fmt.Errorf("%w: %s has the shape %v: give labels, a byte for each image", ErrFormat, labels, of)
	case of[0] != shape[0]:
		return nil, fmt.Errorf("%w: %s has %d images, but %s has %d labels: give files that belong together",
			ErrFormat, images, shape[0], labels, of[0])
	}
	all := &Images{Shape: shape[1:], Pixels: len(pixels) / shape[0], Values: make([]float32, len(pixels)), Labels: names}
	for i, p := range pixels {
		all.Values[i] = float32(p) / 255
	}
	return all, nil
}

// unsignedBytes is the type of the values, in the third byte of a file. The fourth is the number of
// dimensions.
const unsignedBytes = 8

func readIDX(name string) (shape []int, values []byte, err error) {
	const remedy = "give an IDX file of bytes, as MNIST has them"
	opened, err := file.Open(name)
	if err != nil {
		return nil, nil, fmt.Errorf("digits: %w: %s", err, remedy)
	}
	defer opened.Close()
	wrong := func(problem string, about ...any) error {
		return fmt.Errorf("%w: %s: %s: %s", ErrFormat, name, fmt.Sprintf(problem, about...), remedy)
	}
	in, err := data.NewReader(opened)
	if err != nil {
		return nil, nil, wrong("%v", err)
	}
	var head [4]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return nil, nil, wrong("no header: %v", err)
	}
	if head[0] != 0 || head[1] != 0 || head[2] != unsignedBytes || head[3] == 0 {
		return nil, nil, wrong("it begins with % x, not with 00 00 08 and the number of dimensions", head)
	}
	size := 1
	for range head[3] {
		var extent uint32
		if err := binary.Read(in, binary.BigEndian, &extent); err != nil {
			return nil, nil, wrong("its header is cut short: %v", err)
		}
		shape = append(shape, int(extent))
		if size *= int(extent); size > maxBytes || int(extent) > maxBytes {
			return nil, nil, wrong("shape %v is too large", shape)
		}
	}
	values = make([]byte, size)
	if _, err := io.ReadFull(in, values); err != nil {
		return nil, nil, wrong("it ends before its %d values: %v", size, err)
	}
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		return nil, nil, wrong("it goes on after its %d values", size)
	}
	return shape, values, nil
}
