package link

// NewBed is for tests of the exported API.
var NewBed = newBed
