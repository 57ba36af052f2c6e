package cp

func (PutUser) tag() byte     { return tagPutUser }
func (DeleteUser) tag() byte  { return tagDeleteUser }
func (SetGrant) tag() byte    { return tagSetGrant }
func (PutToken) tag() byte    { return tagPutToken }
func (DeleteToken) tag() byte { return tagDeleteToken }
func (SetQuota) tag() byte    { return tagSetQuota }

func (c PutUser) put(e *encoder) {
	e.string(c.Name)
	e.bytes(c.Hash)
	e.grants(c.Grants)
	e.bool(c.Replace)
	e.i64(c.At)
}

func (c DeleteUser) put(e *encoder) { e.string(c.Name) }

func (c SetGrant) put(e *encoder) {
	e.string(c.User)
	e.grant(c.Grant)
	e.bool(c.Revoke)
}

func (c PutToken) put(e *encoder) {
	e.string(c.User)
	e.token(&c.Token)
}

func (c DeleteToken) put(e *encoder) { e.b = append(e.b, c.ID[:]...) }

func (c SetQuota) put(e *encoder) {
	e.string(c.User)
	e.quota(c.Quota)
}

func decodePutUser(d *decoder) Command {
	return PutUser{Name: d.string(), Hash: d.bytes(), Grants: d.grants(), Replace: d.bool(), At: d.i64()}
}

func decodeSetGrant(d *decoder) Command {
	return SetGrant{User: d.string(), Grant: d.grant(), Revoke: d.bool()}
}

// A user, in a snapshot: name, hash, created i64, changed i64, grants, tokens (count u32,
// then each), quota.
func (e *encoder) user(u *User) {
	e.string(u.Name)
	e.bytes(u.Hash)
	e.i64(u.Created)
	e.i64(u.Changed)
	e.grants(u.Grants)
	e.u32(uint32(len(u.Tokens)))
	for i := range u.Tokens {
		e.token(&u.Tokens[i])
	}
	e.quota(u.Quota)
}

func (d *decoder) user() *User {
	u := &User{Name: d.string(), Hash: d.bytes(), Created: d.i64(), Changed: d.i64(), Grants: d.grants()}
	n := d.count(tokenLen)
	for range n {
		u.Tokens = append(u.Tokens, d.token())
	}
	u.Quota = d.quota()
	return u
}

func (e *encoder) grants(v []Grant) {
	e.u32(uint32(len(v)))
	for _, g := range v {
		e.grant(g)
	}
}

func (d *decoder) grants() []Grant {
	const least = 1 + 1 + 4
	n := d.count(least)
	if n == 0 {
		return nil
	}
	v := make([]Grant, n)
	for i := range v {
		v[i] = d.grant()
	}
	return v
}

func (e *encoder) grant(g Grant) {
	e.u8(uint8(g.Kind))
	e.u8(uint8(g.Op))
	e.string(g.Pattern)
}

func (d *decoder) grant() Grant {
	return Grant{Kind: Kind(d.u8()), Op: Operation(d.u8()), Pattern: d.string()}
}

const tokenLen = 16 + 32 + 4 + 8 + 8 // with an empty name

func (e *encoder) token(t *Token) {
	e.b = append(append(e.b, t.ID[:]...), t.Sum[:]...)
	e.string(t.Name)
	e.i64(t.Created)
	e.i64(t.Expires)
}

func (d *decoder) token() (t Token) {
	copy(t.ID[:], d.take(len(t.ID)))
	copy(t.Sum[:], d.take(len(t.Sum)))
	t.Name, t.Created, t.Expires = d.string(), d.i64(), d.i64()
	return t
}

func (d *decoder) tokenID() (id TokenID) {
	copy(id[:], d.take(len(id)))
	return id
}

func (e *encoder) quota(q Quota) {
	e.u64(q.Records)
	e.u64(q.Bytes)
}

func (d *decoder) quota() Quota { return Quota{Records: d.u64(), Bytes: d.u64()} }
