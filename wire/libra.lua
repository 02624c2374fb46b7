-- SPDX-License-Identifier: Apache-2.0
-- Wireshark dissector for Libra frames. docs/wire.md describes the protocol.
--
-- Use it once:          tshark -X lua_script:wire/libra.lua ...
-- Or install it:        copy it into the personal Lua plugins folder
--                       (Help > About Wireshark > Folders).
-- Another UDP port:     preference libra.port, e.g. tshark -o libra.port:20000

local VERSION = 1
local DEFAULT_PORT = 19522
local HEADER, LANES, STRIPE, MAX_STRIPES, ERROR_BODY = 12, 22, 136, 25, 8
local PAGE = 65536
local SCALE_BODY, COVER_BODY, TAKEN_BODY, STEP_BODY, SUMS_HEAD, ALL_SENDERS = 8, 8, 8, 24, 29, 0xffff
local MAX_CODED, GROUP, BURST = 16384, 64, 8
local BLOCK_HEAD, MAX_BOUND, MAX_SCALE = 16, 14, 126

local HOT, COLD, PULL, ROWS, ACK, ERROR, SCALE = 1, 2, 3, 4, 5, 6, 7
local FIND, FOUND, COLD_AT, STEP, SUMS, TAKEN, BLOCK = 8, 9, 10, 11, 12, 13, 14

local TYPES = {
	[HOT] = "HOT", [COLD] = "COLD", [PULL] = "PULL",
	[ROWS] = "ROWS", [ACK] = "ACK", [ERROR] = "ERROR", [SCALE] = "SCALE",
	[FIND] = "FIND", [FOUND] = "FOUND", [COLD_AT] = "COLD_AT",
	[STEP] = "STEP", [SUMS] = "SUMS", [TAKEN] = "TAKEN", [BLOCK] = "BLOCK",
}

-- Bytes of a key, of a row number and of a float, where a row has them.
local ROW = {
	[COLD] = { 8, 0, 4 }, [PULL] = { 8, 0, 0 }, [ROWS] = { 0, 0, 4 },
	[FIND] = { 8, 0, 0 }, [FOUND] = { 0, 4, 0 }, [COLD_AT] = { 0, 4, 4 },
}

local CODES = {
	[1] = "unknown job",
	[2] = "sender not admitted to the job",
	[3] = "slot out of the job's range",
	[4] = "wrong epoch",
	[5] = "unsupported protocol version",
	[6] = "NaN or infinity",
	[7] = "value or sum out of range",
	[8] = "body length not accepted",
	[9] = "operation not supported by the job's mode",
	[10] = "stripe layout not accepted",
	[11] = "row dimension differs from the job's",
	[12] = "frame type not served here",
	[13] = "round is not the one in progress",
	[14] = "sequence number beyond the window",
	[15] = "no room for another row",
	[16] = "row numbers of another server",
	[17] = "row number beyond the server's rows",
	[18] = "no sums of this step in frames: ask the control service",
	[19] = "the job keeps no weights: give it an optimizer (model.optimizer)",
	[20] = "the job has no codec",
}

local libra = Proto("libra", "Libra gradient aggregation")

local f = {
	version = ProtoField.uint8("libra.version", "Version", base.DEC, nil, 0xf0),
	type = ProtoField.uint8("libra.type", "Type", base.DEC, TYPES, 0x0f),
	flags = ProtoField.uint8("libra.flags", "Flags", base.HEX),
	retx = ProtoField.bool("libra.flags.retx", "Retransmission", 8, nil, 0x01),
	want_sum = ProtoField.bool("libra.flags.want_sum", "Sums wanted", 8, nil, 0x02),
	dense = ProtoField.bool("libra.flags.dense", "Dense", 8, nil, 0x04),
	sum = ProtoField.bool("libra.flags.sum", "Carries sums", 8, nil, 0x08),
	all = ProtoField.bool("libra.flags.all", "To all senders", 8, nil, 0x10),
	scale = ProtoField.bool("libra.flags.scale", "Answers a scale report", 8, nil, 0x20),
	coded = ProtoField.bool("libra.flags.coded", "Floats are coded", 8, nil, 0x20),
	quiet = ProtoField.bool("libra.flags.quiet", "Needs no answer of its own, or before its round is complete", 8, nil, 0x40),
	taken = ProtoField.bool("libra.flags.taken", "Answers that a result is taken", 8, nil, 0x40),
	cover = ProtoField.bool("libra.flags.cover", "Covers other frames, or other senders of a round", 8, nil, 0x80),
	job = ProtoField.uint16("libra.job", "Job"),
	sender = ProtoField.uint16("libra.sender", "Sender"),
	epoch = ProtoField.uint16("libra.epoch", "Epoch"),
	seq = ProtoField.uint32("libra.seq", "Sequence number"),
	stripe = ProtoField.bytes("libra.stripe", "Stripe"),
	mask = ProtoField.uint32("libra.stripe.mask", "Page and lane mask", base.HEX),
	page = ProtoField.uint32("libra.stripe.page", "Page"),
	lane = ProtoField.uint8("libra.pair.lane", "Lane"),
	slot = ProtoField.uint16("libra.pair.slot", "Slot"),
	rank = ProtoField.uint32("libra.pair.rank", "Rank"),
	value = ProtoField.float("libra.pair.value", "Value"),
	integer = ProtoField.int32("libra.pair.integer", "Value in fixed arithmetic"),
	covered = ProtoField.uint64("libra.cover", "Frames applied, or positions that contributed to the round", base.HEX),
	takers = ProtoField.uint64("libra.takers", "Positions that have the result of the round", base.HEX),
	taken_first = ProtoField.uint16("libra.taken.first", "First slot"),
	taken_round = ProtoField.uint32("libra.taken.round", "Round"),
	iteration = ProtoField.uint32("libra.scale.iteration", "Iteration"),
	exponent = ProtoField.uint8("libra.scale.exponent", "Largest exponent"),
	step = ProtoField.uint64("libra.step", "Step"),
	hot_sent = ProtoField.uint32("libra.step.hot_sent", "Next frame for the aggregator"),
	hot_answered = ProtoField.uint32("libra.step.hot_answered", "First of them not answered"),
	first = ProtoField.uint32("libra.step.first", "First row"),
	room = ProtoField.uint32("libra.step.room", "Frames at once"),
	step_rows = ProtoField.uint32("libra.step.rows", "Rows of the step"),
	width = ProtoField.uint8("libra.step.width", "Bytes of a key"),
	operation = ProtoField.uint32("libra.block.operation", "Operation"),
	block_first = ProtoField.uint32("libra.block.first", "First value, or values of the vector"),
	block_step = ProtoField.uint16("libra.block.step", "Step, or workers of the ring"),
	bound = ProtoField.uint8("libra.block.bound", "Bound"),
	block_scale = ProtoField.int8("libra.block.scale", "Scale"),
	count = ProtoField.uint16("libra.count", "Count"),
	dim = ProtoField.uint16("libra.dim", "Dimension"),
	key = ProtoField.uint64("libra.key", "Key", base.HEX),
	numbering = ProtoField.uint32("libra.numbering", "Numbering", base.HEX),
	number = ProtoField.uint32("libra.number", "Row number"),
	row = ProtoField.bytes("libra.row", "Row"),
	float = ProtoField.float("libra.row.value", "Value"),
	codes = ProtoField.bytes("libra.codes", "Codes"),
	code = ProtoField.uint16("libra.error.code", "Code", base.DEC, CODES),
	index = ProtoField.uint16("libra.error.index", "Index"),
	detail = ProtoField.uint32("libra.error.value", "Value"),
}
for _, field in pairs(f) do table.insert(libra.fields, field) end

local e = {
	malformed = ProtoExpert.new("libra.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR),
	version = ProtoExpert.new("libra.version.unsupported", "Another protocol version", expert.group.PROTOCOL, expert.severity.WARN),
	type = ProtoExpert.new("libra.type.unknown", "Unknown type", expert.group.UNDECODED, expert.severity.WARN),
	cut = ProtoExpert.new("libra.cut", "The capture does not hold the whole frame", expert.group.UNDECODED, expert.severity.NOTE),
	refused = ProtoExpert.new("libra.refused", "Frame refused", expert.group.RESPONSE_CODE, expert.severity.WARN),
}
for _, field in pairs(e) do table.insert(libra.experts, field) end

local function counted(n, noun)
	return string.format(n == 1 and "%d %s" or "%d %ss", n, noun)
end

-- Each body dissector returns a summary, or nil and what is wrong.

local function pairs_of(stripe, tree, dense, page)
	local n = 0
	for j = 0, LANES - 1 do
		if stripe:range(0, 4):bitfield(31 - j, 1) == 1 then
			n = n + 1
			local value, slot = stripe:range(4 + 4 * j, 4), stripe:range(92 + 2 * j, 2)
			local rank = page * PAGE + (dense and slot:uint() or slot:uint() * LANES + j)
			local sub = tree:add(f.value, value)
			sub:set_text(string.format("Lane %d, rank %d: %g", j, rank, value:float()))
			sub:add(f.lane, j):set_generated()
			sub:add(f.integer, value)
			if dense then
				sub:add(f.rank, slot, rank)
			else
				sub:add(f.slot, slot)
				sub:add(f.rank, rank):set_generated()
			end
		end
	end
	return n
end

local function dissect_stripes(body, tree, dense)
	local n = body:len() / STRIPE
	if n < 1 or n > MAX_STRIPES or n ~= math.floor(n) then
		return nil, string.format("body of %d bytes is not 1 to %d stripes of %d", body:len(), MAX_STRIPES, STRIPE)
	end
	local total = 0
	for i = 0, n - 1 do
		local stripe = body:range(i * STRIPE, STRIPE)
		local sub = tree:add(f.stripe, stripe)
		local page = stripe:range(0, 4):bitfield(0, 32 - LANES)
		sub:add(f.mask, stripe:range(0, 4))
		sub:add(f.page, stripe:range(0, 4), page)
		local count = pairs_of(stripe, sub, dense, page)
		sub:set_text(string.format("Stripe %d, page %d: %s", i, page, counted(count, "pair")))
		total = total + count
	end
	return counted(n, "stripe") .. ", " .. counted(total, "pair")
end

local function add_row(tree, i, floats)
	local sub = tree:add(f.row, floats)
	sub:set_text(string.format("Row %d", i))
	for at = 0, floats:len() - 4, 4 do
		sub:add(f.float, floats:range(at, 4))
	end
end

-- check_codes returns nothing, or what is wrong with the codes of values. Their meaning depends on
-- the job's bound and scale, which are not in frames.
local function check_codes(codes, values)
	local at, length = 0, codes:len()
	while values > 0 do
		if at == length then return "codes end early" end
		local marks, group = codes:range(at, 1), math.min(values, GROUP)
		at, values = at + 1, values - group
		for burst = 0, GROUP / BURST - 1 do
			if marks:bitfield(burst, 1) == 1 then
				if group <= 0 then return "codes beyond the last value" end
				if at + 2 > length then return "codes end early" end
				local tags = codes:range(at, 2)
				if tags:uint() == 0 then return "a marked burst of zeros" end
				at = at + 2
				for value = 0, BURST - 1 do
					local tag = tags:bitfield(2 * value, 2)
					if tag > 0 and value >= group then return "codes beyond the last value" end
					at = at + (tag == 3 and 4 or tag)
				end
				if at > length then return "codes end early" end
			end
			group = group - BURST
		end
	end
	if at < length then return counted(length - at, "byte") .. " more than the codes" end
end

local function dissect_coded(body, tree, kind)
	if body:len() < 4 then
		return nil, "body ends before count and dimension"
	end
	local count, dim = body:range(0, 2):uint(), body:range(2, 2):uint()
	tree:add(f.count, body:range(0, 2))
	tree:add(f.dim, body:range(2, 2))
	local key, number = ROW[kind][1], ROW[kind][2]
	local at = number > 0 and 8 or 4
	local codes = at + count * (key + number)
	if count == 0 or dim == 0 or count * dim > MAX_CODED or body:len() <= codes then
		return nil, string.format("body of %d bytes does not hold %s of dimension %d in codes", body:len(),
			counted(count, "row"), dim)
	end
	local wrong = check_codes(body:range(codes), count * dim)
	if wrong then
		return nil, wrong
	end
	if number > 0 then
		tree:add(f.numbering, body:range(4, 4))
	end
	for i = 0, count - 1 do
		if key > 0 then
			tree:add(f.key, body:range(at + i * key, key))
		else
			tree:add(f.number, body:range(at + i * number, number))
		end
	end
	tree:add(f.codes, body:range(codes))
	return string.format("%s of dimension %d in %s of codes", counted(count, "row"), dim,
		counted(body:len() - codes, "byte"))
end

local function dissect_rows(body, tree, kind)
	if body:len() < 4 then
		return nil, "body ends before count and dimension"
	end
	local count, dim = body:range(0, 2):uint(), body:range(2, 2):uint()
	tree:add(f.count, body:range(0, 2))
	tree:add(f.dim, body:range(2, 2))
	local key, number, floats = ROW[kind][1], ROW[kind][2], ROW[kind][3] * dim
	local at = number > 0 and 8 or 4
	if count == 0 or dim == 0 or body:len() ~= at + count * (key + number + floats) then
		return nil, string.format("body of %d bytes does not hold %s of dimension %d", body:len(), counted(count, "row"), dim)
	end
	if number > 0 then
		tree:add(f.numbering, body:range(4, 4))
	end
	for i = 0, count - 1 do
		if key > 0 then
			tree:add(f.key, body:range(at + i * key, key))
		end
		if number > 0 then
			tree:add(f.number, body:range(at + i * number, number))
		end
		if floats > 0 then
			add_row(tree, i, body:range(at + count * (key + number) + i * floats, floats))
		end
	end
	return string.format("%s of dimension %d", counted(count, "row"), dim)
end

-- A key of SUMS is the first one's plus a difference of width bytes.
local function dissect_sums(body, tree)
	if body:len() < SUMS_HEAD then
		return nil, "body ends before its rows"
	end
	local count, dim, width = body:range(0, 2):uint(), body:range(2, 2):uint(), body:range(28, 1):uint()
	tree:add(f.count, body:range(0, 2))
	tree:add(f.dim, body:range(2, 2))
	if count == 0 or dim == 0 or width < 1 or width > 8 or body:len() ~= SUMS_HEAD + count * (width + 4 * dim) then
		return nil, string.format("body of %d bytes does not hold %s of dimension %d with %s of a key",
			body:len(), counted(count, "row"), dim, counted(width, "byte"))
	elseif body:range(16, 4):uint() + count > body:range(12, 4):uint() then
		return nil, "rows beyond those of the step"
	elseif tostring(body:range(SUMS_HEAD, width):bytes()) ~= string.rep("00", width) then
		return nil, "the first row has another key than the first one"
	end
	tree:add(f.step, body:range(4, 8))
	tree:add(f.step_rows, body:range(12, 4))
	tree:add(f.first, body:range(16, 4))
	tree:add(f.width, body:range(28, 1))
	for i = 0, count - 1 do
		local difference = body:range(SUMS_HEAD + i * width, width)
		tree:add(f.key, difference, body:range(20, 8):uint64() + UInt64.fromhex(tostring(difference:bytes())))
		add_row(tree, i, body:range(SUMS_HEAD + count * width + 4 * dim * i, 4 * dim))
	end
	return string.format("%s of dimension %d", counted(count, "row"), dim)
end

local function dissect_scale(body, tree)
	if body:len() ~= SCALE_BODY then
		return nil, string.format("body of %d bytes is not %d", body:len(), SCALE_BODY)
	end
	tree:add(f.iteration, body:range(0, 4))
	tree:add(f.exponent, body:range(4, 1))
	return string.format("iteration %d, exponent %d", body:range(0, 4):uint(), body:range(4, 1):uint())
end

local function dissect_step(body, tree)
	if body:len() ~= STEP_BODY then
		return nil, string.format("body of %d bytes is not %d", body:len(), STEP_BODY)
	end
	tree:add(f.step, body:range(0, 8))
	tree:add(f.hot_sent, body:range(8, 4))
	tree:add(f.hot_answered, body:range(12, 4))
	tree:add(f.first, body:range(16, 4))
	tree:add(f.room, body:range(20, 4))
	return "step " .. tostring(body:range(0, 8):uint64())
end

-- A BLOCK without values says that its sender is in an operation.
local function dissect_block(body, tree)
	if body:len() < BLOCK_HEAD then
		return nil, "body ends before its values"
	end
	local count, bound, scale = body:range(8, 2):uint(), body:range(12, 1):uint(), body:range(13, 1):int()
	tree:add(f.operation, body:range(0, 4))
	tree:add(f.block_first, body:range(4, 4))
	tree:add(f.count, body:range(8, 2))
	tree:add(f.block_step, body:range(10, 2))
	tree:add(f.bound, body:range(12, 1))
	tree:add(f.block_scale, body:range(13, 1))
	local length = body:len() - BLOCK_HEAD
	if bound > MAX_BOUND or scale < -MAX_SCALE or scale > MAX_SCALE then
		return nil, string.format("no codec has bound %d and scale %d", bound, scale)
	elseif count == 0 or bound == 0 then
		if length ~= 4 * count then
			return nil, string.format("%s do not hold %s", counted(length, "byte"), counted(count, "value"))
		end
		if count > 0 then
			add_row(tree, 0, body:range(BLOCK_HEAD))
		end
	else
		if count > MAX_CODED or length == 0 then
			return nil, string.format("%s do not hold %s in codes", counted(length, "byte"), counted(count, "value"))
		end
		local wrong = check_codes(body:range(BLOCK_HEAD), count)
		if wrong then
			return nil, wrong
		end
		tree:add(f.codes, body:range(BLOCK_HEAD))
	end
	local operation, first, step = body:range(0, 4):uint(), body:range(4, 4):uint(), body:range(10, 2):uint()
	if count == 0 then
		return string.format("in operation %d of %s and %s", operation, counted(first, "value"), counted(step, "worker"))
	end
	return string.format("operation %d step %d, %s from %d on", operation, step, counted(count, "value"), first)
end

local function dissect_taken(body, tree)
	if body:len() ~= TAKEN_BODY then
		return nil, string.format("body of %d bytes is not %d", body:len(), TAKEN_BODY)
	end
	tree:add(f.taken_first, body:range(0, 2))
	tree:add(f.taken_round, body:range(4, 4))
	return string.format("first slot %d, round %d", body:range(0, 2):uint(), body:range(4, 4):uint())
end

local function dissect_cover(body, tree, taken)
	if body:len() ~= COVER_BODY then
		return nil, string.format("body of %d bytes is not %d", body:len(), COVER_BODY)
	end
	tree:add(taken and f.takers or f.covered, body:range(0, 8))
	return ""
end

local function dissect_error(body, tree)
	if body:len() ~= ERROR_BODY then
		return nil, string.format("body of %d bytes is not %d", body:len(), ERROR_BODY)
	end
	local code = body:range(0, 2):uint()
	local item = tree:add(f.code, body:range(0, 2))
	tree:add(f.index, body:range(2, 2))
	tree:add(f.detail, body:range(4, 4))
	local text = CODES[code] or string.format("error code %d", code)
	item:add_proto_expert_info(e.refused, "Frame refused: " .. text)
	return text
end

local function dissect_body(kind, flags, body, tree)
	if kind == HOT then
		return dissect_stripes(body, tree, flags.dense)
	elseif flags.coded then
		return dissect_coded(body, tree, kind)
	elseif ROW[kind] then
		return dissect_rows(body, tree, kind)
	elseif kind == SUMS then
		return dissect_sums(body, tree)
	elseif kind == BLOCK then
		return dissect_block(body, tree)
	elseif kind == STEP then
		return dissect_step(body, tree)
	elseif kind == ERROR then
		return dissect_error(body, tree)
	elseif flags.taken and (flags.sum or flags.scale) then
		return nil, "acknowledgement of a TAKEN with SUM or SCALE"
	elseif kind == TAKEN or flags.taken and not flags.cover then
		return dissect_taken(body, tree)
	elseif kind == SCALE or flags.sum and flags.scale then
		return dissect_scale(body, tree)
	elseif flags.sum then
		return dissect_stripes(body, tree, flags.dense)
	elseif flags.cover then
		return dissect_cover(body, tree, flags.taken)
	elseif body:len() > 0 then
		return nil, string.format("acknowledgement without sums has a body of %d bytes", body:len())
	end
	return ""
end

-- dissect_header returns type and flags.
local function dissect_header(tvb, tree)
	tree:add(f.version, tvb(0, 1))
	local kind = tree:add(f.type, tvb(0, 1))
	local flags = tree:add(f.flags, tvb(1, 1))
	local number = tvb(0, 1):bitfield(4, 4)
	local cold = number == COLD or number == COLD_AT
	local fifth, sixth = cold and f.coded or f.scale, number == ACK and f.taken or f.quiet
	for _, flag in ipairs({ f.retx, f.want_sum, f.dense, f.sum, f.all, fifth, sixth, f.cover }) do
		flags:add(flag, tvb(1, 1))
	end
	tree:add(f.job, tvb(2, 2))
	tree:add(f.sender, tvb(4, 2))
	tree:add(f.epoch, tvb(6, 2))
	tree:add(f.seq, tvb(8, 4))
	return kind, {
		cover = tvb(1, 1):bitfield(0, 1) == 1,
		quiet = number ~= ACK and tvb(1, 1):bitfield(1, 1) == 1,
		taken = number == ACK and tvb(1, 1):bitfield(1, 1) == 1,
		scale = not cold and tvb(1, 1):bitfield(2, 1) == 1,
		coded = cold and tvb(1, 1):bitfield(2, 1) == 1,
		all = tvb(1, 1):bitfield(3, 1) == 1,
		sum = tvb(1, 1):bitfield(4, 1) == 1,
		dense = tvb(1, 1):bitfield(5, 1) == 1,
		want_sum = tvb(1, 1):bitfield(6, 1) == 1,
		retx = tvb(1, 1):bitfield(7, 1) == 1,
	}
end

local function summary(tvb, kind, flags)
	local sender, numbered = string.format("sender %d", tvb(4, 2):uint()), "seq"
	if kind == ACK and flags.all and tvb(4, 2):uint() == ALL_SENDERS then
		sender, numbered = "all senders", "round"
	end
	local text = string.format("%s job %d %s epoch %d %s %d",
		TYPES[kind] or string.format("Type(%d)", kind),
		tvb(2, 2):uint(), sender, tvb(6, 2):uint(), numbered, tvb(8, 4):uint())
	for _, name in ipairs({ "retx", "want_sum", "dense", "sum", "all", "scale", "coded", "quiet", "taken", "cover" }) do
		if flags[name] then text = text .. " " .. name:upper() end
	end
	return text
end

function libra.dissector(tvb, pinfo, root)
	pinfo.cols.protocol = "Libra"
	local tree = root:add(libra, tvb())
	if tvb:reported_len() < HEADER then
		pinfo.cols.info = "malformed"
		tree:add_proto_expert_info(e.malformed, string.format("Malformed: payload of %d bytes is shorter than the header", tvb:reported_len()))
		return tvb:len()
	elseif tvb:captured_len() < HEADER then
		pinfo.cols.info = "cut by the capture"
		tree:add_proto_expert_info(e.cut)
		return tvb:len()
	end
	local item, flags = dissect_header(tvb, tree)
	local version, kind = tvb(0, 1):bitfield(0, 4), tvb(0, 1):bitfield(4, 4)
	local text = summary(tvb, kind, flags)
	local detail, wrong
	if version ~= VERSION then
		tree:add_proto_expert_info(e.version)
	elseif not TYPES[kind] then
		item:add_proto_expert_info(e.type)
	elseif tvb:captured_len() < tvb:reported_len() then
		tree:add_proto_expert_info(e.cut)
		detail = "cut by the capture"
	else
		detail, wrong = dissect_body(kind, flags, tvb(HEADER), tree)
	end
	if wrong then
		tree:add_proto_expert_info(e.malformed, "Malformed: " .. wrong)
		detail = "malformed"
	end
	if detail and detail ~= "" then text = text .. ": " .. detail end
	pinfo.cols.info = text
	tree:append_text(": " .. text)
	return tvb:len()
end

local udp = DissectorTable.get("udp.port")
local port = DEFAULT_PORT
libra.prefs.port = Pref.uint("UDP port", DEFAULT_PORT, "UDP port of aggregators, servers and workers")
udp:add(port, libra)

function libra.prefs_changed()
	udp:remove(port, libra)
	port = libra.prefs.port
	udp:add(port, libra)
end
